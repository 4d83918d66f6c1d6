"""Two hundred texts in many languages and scripts, written for this repository."""

from __future__ import annotations

import unicodedata

SENTENCES = (
    "The library opens at nine, but the café next door is already full.",
    "Die Bibliothek öffnet um neun; die Straße davor ist noch leer.",
    "La bibliothèque ouvre à neuf heures, même l'été, où déjà tout est fermé.",
    "La biblioteca abre a las nueve, ¿o era mañana a las diez?",
    "A biblioteca abre às nove; o pão da padaria já acabou.",
    "La biblioteca apre alle nove, perché il custode è puntuale.",
    "De bibliotheek gaat om negen uur open en 's avonds om tien dicht.",
    "Biblioteket öppnar klockan nio, men hissen är sönder på måndagar.",
    "Biblioteka otwiera się o dziewiątej, a źdźbła trawy są jeszcze mokre.",
    "Knihovna se otevírá v devět hodin a příští týden bude zavřená.",
    "A könyvtár kilenckor nyit, ám az őr már hétkor megérkezett.",
    "Kütüphane saat dokuzda açılır; İstanbul'da ise öğleden sonra.",
    "Библиотека открывается в девять часов, а ёлку уже убрали.",
    "Бібліотека відчиняється о дев'ятій, її двері пофарбовано наново.",
    "Η βιβλιοθήκη ανοίγει στις εννέα και κλείνει το βράδυ.",
    "تفتح المكتبة أبوابها في التاسعة صباحًا كل يوم.",
    "الكتاب على الطاولة، والقلم تحتها؛ أين الدفتر؟",
    "הספרייה נפתחת בשעה תשע, והשומר כבר כאן.",
    "पुस्तकालय नौ बजे खुलता है और शाम को बंद हो जाता है।",
    "গ্রন্থাগার সকাল নয়টায় খোলে, তবে শুক্রবারে বন্ধ থাকে।",
    "ห้องสมุดเปิดเก้าโมงเช้าและปิดตอนหกโมงเย็น",
    "Thư viện mở cửa lúc chín giờ, còn quán cà phê thì sớm hơn.",
    "图书馆九点开门，隔壁的咖啡馆已经坐满了。",
    "圖書館九點開門，門前的街道還是空的。",
    "図書館は九時に開きますが、隣のカフェはもう満員です。",
    "도서관은 아홉 시에 문을 열고, 옆 카페는 벌써 가득 찼습니다.",
    "Maktaba inafunguliwa saa tatu asubuhi, isipokuwa siku ya Jumapili.",
    "բրադարանը բացվում է ժամը իննին",
    "Mixed: 東京 Tower, Straße №5, naïve résumé, 3½ kg, ﬁve ﬂags, Ｆｕｌｌ ｗｉｄｔｈ.",
    "Signs: 👨‍👩‍👧‍👦 🇯🇵 ❤️ → ∑ €100 «quoted» “curly” … ™ ①②③ x² H₂O",
)


def multilingual_texts() -> list[str]:
    """Each sentence in seven forms, less the last ten: 3 to more than 512 tokens."""
    texts: list[str] = []
    for at, sentence in enumerate(SENTENCES):
        others = SENTENCES[at:] + SENTENCES[:at]
        texts += [
            sentence,
            sentence.split()[0],
            sentence.upper(),
            unicodedata.normalize("NFD", sentence),
            "\t" + sentence.replace(" ", "  \n") + " \u00a0",
            "\u3000".join(others[:4]),
            " ".join(others),
        ]
    return texts[:200]
