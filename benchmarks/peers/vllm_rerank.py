"""vLLM as a reranker: one query with 10, 100 and 500 texts of 256 tokens, offline.

`python benchmarks/peers/vllm_rerank.py FOLDER`, where FOLDER is `bge-reranker-v2-m3` or `qwen3-reranker-0.6b` of
`random_models.py`. Two suites: `rerank` gives it the ids of the pairs, as engines get them; `rerank-text` calls `score`
with texts, which tokenizes them one pair at a time. Each row has `docs_per_s`, and beside it the largest
difference of 8 scores from transformers in float32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rows
import vllm_options
from numpy.typing import NDArray
from rows import END_ID, Ids, Report

QUERY_TOKENS, TEXT_TOKENS, NUM_TEXTS = 12, 256, (10, 100, 500)
NUM_WARM, MIN_TIMED, SECONDS, NUM_COMPARED = 3, 15, 2.0, 8


def pairs(query: Ids, texts: list[Ids]) -> list[Ids]:
    """As the folder's tokenizer makes them: query, end, text, end."""
    return [[*query[:-1], END_ID, *text[:-1], END_ID] for text in texts]


def measure(run: Callable[[int], Any], count: int) -> rows.Row:
    """Documents a second, p50 and p99 of requests of so many texts, one after another."""
    for at in range(NUM_WARM):
        run(at)
    taken: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(taken) < MIN_TIMED or time.perf_counter() < until:
        start = time.perf_counter()
        run(len(taken))
        taken.append(time.perf_counter() - start)
    return rows.spread(taken) | {"docs_per_s": count / statistics.median(taken)}


def reference(folder: str, given: list[Ids]) -> NDArray[np.float32]:
    """[num_pairs] float32: transformers' scores, after the sigmoid."""
    import torch
    from transformers import AutoModelForSequenceClassification

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    model.to(device).eval()
    with torch.inference_mode():
        ids = torch.tensor(given, device=device)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits[:, 0].sigmoid().float().cpu().numpy()


def main() -> None:
    """Measures."""
    parser = rows.parser("vLLM as a reranker.")
    vllm_options.add_to(parser)
    options = parser.parse_args()
    started = time.perf_counter()
    found = vllm_options.engine_options(options)
    engine = vllm_options.offline_engine(options.folder, found)

    def run(given: list[Ids]) -> list[float]:
        prompts = vllm_options.prompts(given)
        answers = engine.encode(prompts, pooling_task="classify", use_tqdm=False)
        return [float(answer.outputs.data[0]) for answer in answers]

    queries = [rows.sequences([QUERY_TOKENS], seed)[0] for seed in range(8)]
    texts = rows.sequences([TEXT_TOKENS] * max(NUM_TEXTS), seed=9)
    compared = pairs(queries[0], texts[:NUM_COMPARED])
    ours = np.array(run(compared), np.float32)
    report = Report("vllm", "vllm", options, options.dtype, vllm_options.shown(found))
    report.ready(started)
    error = np.abs(ours - reference(str(options.folder), compared)).max()
    report.more |= {"max_score_error": float(error)}
    for count in NUM_TEXTS:
        given = [pairs(query, texts[:count]) for query in queries]
        figures = measure(lambda at, given=given: run(given[at % len(given)]), count)
        tokens = len(given[0][0]) * figures["docs_per_s"]
        figures |= rows.rates(figures["docs_per_s"], tokens)
        report.print("rerank", count, TEXT_TOKENS, **figures)
    # The space keeps the words apart where vLLM joins the two by nothing.
    asked = [f"{rows.text(query)} " for query in queries]
    documents = [rows.text(ids) for ids in texts]
    for count in NUM_TEXTS:
        figures = measure(
            lambda at, count=count: engine.score(
                asked[at % len(asked)], documents[:count], use_tqdm=False
            ),
            count,
        )
        tokens = (QUERY_TOKENS + TEXT_TOKENS) * figures["docs_per_s"]
        figures |= rows.rates(figures["docs_per_s"], tokens)
        report.print("rerank-text", count, TEXT_TOKENS, **figures)


if __name__ == "__main__":
    main()
