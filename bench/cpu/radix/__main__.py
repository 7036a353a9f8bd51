"""`python -m bench.cpu.radix --requests 2000`: JSON per measurement; 1 if any text differs."""

import argparse
import json
import sys
import time

from bench.cpu.radix.crowd import DRAFTS, build, draw, serve
from bench.cpu.radix.timing import measure


def main() -> int:
    """Time the cache, then serve the crowd with every algorithm."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="radix")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--page-size", type=int, default=4)
    options = parser.parse_args()
    for page_size in (1, 16, 256):
        for lookahead, branches in ((0, 0), (1, 0), (1, 200)):
            print(json.dumps(measure(page_size, lookahead, branches)), flush=True)
    if not options.requests:
        return 0
    requests = draw(options.requests, options.seed)
    plain = build("NONE", is_on=False, pages=400, page_size=16)
    cold = serve(plain, requests, 0.0, "cold, plain")
    mismatches = 0
    for algorithm in DRAFTS:
        lines = {}
        for is_on in (True, False):
            core = build(algorithm, is_on=is_on, pages=options.pages, page_size=options.page_size)
            started = time.process_time()
            served = serve(core, requests, 0.1, f"{algorithm}, cache {'on' if is_on else 'off'}")
            differing = served.differing(cold)
            mismatches += differing
            cache = core.scheduler.cache
            lines["on" if is_on else "off"] = {
                "mismatches": differing,
                "aborted": len(served.aborted),
                "preempted": core.scheduler.preempted_total,
                "prompt_tokens_computed": core.counters.prompt_tokens,
                "hit_rate": round(cache.hit_tokens / max(cache.queried_tokens, 1), 3),
                "evicted_pages": cache.evicted_pages,
                "accept_length": round(core.counters.decode.accept_length, 4),
                "processor_s": round(time.process_time() - started, 1),
            }
        print(json.dumps({"algorithm": algorithm, **lines}), flush=True)
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
