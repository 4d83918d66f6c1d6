"""vLLM as a reranker: one query with 10, 100 and 500 texts, offline; query and text together have 256 tokens.

`python benchmarks/peers/vllm_rerank.py FOLDER`, where FOLDER is `bge-reranker-v2-m3` or `qwen3-reranker-0.6b` of
`random_models.py`. Two suites: `rerank` gives it the ids of the pairs, as engines get them; `rerank-text` calls `score`
with texts, which tokenizes them one pair at a time. Each row has `docs_per_s`, and beside it how 32 scores
correlate with those of transformers in float32, and the largest difference.
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

from flowerbed.bench import RERANK_SHAPES

QUERY_TOKENS = 12
NUM_WARM, MIN_TIMED, SECONDS, NUM_COMPARED = 2, 10, 1.5, 32


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
    rate = count / statistics.median(taken)
    tokens = rate * RERANK_SHAPES[0][1]
    return rows.spread(taken) | rows.rates(rate, tokens) | {"docs_per_s": rate}


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
    (pair_tokens,) = {length for _, length in RERANK_SHAPES}
    most = max(count for count, _ in RERANK_SHAPES)
    texts = rows.sequences([pair_tokens - QUERY_TOKENS] * most, seed=9)
    compared = pairs(queries[0], texts[:NUM_COMPARED])
    ours = np.array(run(compared), np.float32)
    report = Report("vllm", "vllm", options, options.dtype, vllm_options.shown(found))
    report.ready(started)
    theirs = reference(str(options.folder), compared)
    report.more |= {
        "score_correlation": float(np.corrcoef(ours, theirs)[0, 1]),
        "max_score_error": float(np.abs(ours - theirs).max()),
    }
    for count, length in RERANK_SHAPES:
        given = [pairs(query, texts[:count]) for query in queries]
        figures = measure(lambda at, given=given: run(given[at % len(given)]), count)
        report.print("rerank", count, length, **figures)
    # The space keeps the words apart where vLLM joins the two by nothing.
    asked = [f"{rows.text(query)} " for query in queries]
    documents = [rows.text(ids) for ids in texts]
    for count, length in RERANK_SHAPES:
        figures = measure(
            lambda at, count=count: engine.score(
                asked[at % len(asked)], documents[:count], use_tqdm=False
            ),
            count,
        )
        report.print("rerank-text", count, length, **figures)
    rows.done()


if __name__ == "__main__":
    main()
