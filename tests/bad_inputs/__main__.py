"""`python -m tests.bad_inputs`: the whole campaign. 1 if any input got a wrong answer."""

import argparse
import random
import sys
import time

from tests.bad_inputs import command_lines, data_files, jobs, records, scripts, yaml_files
from tests.bad_inputs.campaign import Kind, run

SEED = 0
KINDS: dict[str, Kind] = {
    "yaml": yaml_files.cases,
    "command lines": command_lines.cases,
    "scripts": scripts.cases,
    "records": records.cases,
    "jobs": jobs.cases,
    "data and parity": data_files.cases,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bad_inputs", description=__doc__)
    parser.add_argument("--seed", default=str(SEED), help="a number, or `random` for a new one (default: %(default)s)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this one; repeatable")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if asked.seed == "random" else int(asked.seed)
    start = time.perf_counter()
    kinds = {name: cases for name, cases in KINDS.items() if name in (asked.kind or KINDS)}
    counts, wrong = run(kinds, seed=seed)
    for name, count in counts.items():
        print(f"{name}: {count}")
    for line in wrong:
        print(f"WRONG {line}")
    took_s = time.perf_counter() - start
    print(f"seed {seed}: {counts.total()} inputs in {took_s:.0f} s, {len(wrong)} with a wrong answer")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
