"""`python -m tests.golden record|check [NAME ...]`."""

import json
import sys
import time

from tests.golden.net import CALLS, COMMANDS, KEPT, differences, kept_form, observed

action, names = sys.argv[1], sys.argv[2:] or [*COMMANDS, *CALLS]
KEPT.mkdir(exist_ok=True)
bad = 0
for name in names:
    start = time.perf_counter()
    try:
        found = observed(name)
    except Exception as error:
        bad += 1
        print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        continue
    if action == "record":
        (KEPT / f"{name}.json").write_text(json.dumps(kept_form(name, found), separators=(",", ":")) + "\n")
        print(f"{name}: code {found.get('code')}, {time.perf_counter() - start:.1f} s", flush=True)
    else:
        wrong = differences(name, found)
        bad += bool(wrong)
        print(f"{name}: {'same' if not wrong else '; '.join(wrong)}", flush=True)
print(f"{len(names)} run, {bad} {'failed' if action == 'record' else 'differ'}")
sys.exit(bool(bad))
