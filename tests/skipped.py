#!/usr/bin/env python3
"""What the last run of the Criterion programs skipped. Usage: skipped.py REPORTS_DIR

A skip is a test that did not happen: it is listed, and it fails unless it is of a kind that a
machine may well lack (instruction sets, the rights of root)."""
import fnmatch
import json
import pathlib
import sys

MAY_LACK = [
    "*::*_avx512_core_?t",
    "*::*_avx2_?t",
    "parity::*_with_avx2",
    "parity::*_with_sse41",
    "relay_file::full_file_system",  # user namespaces
    "relay_file::waits_without_inotify",
    "mem::killed_writer",  # these relays live in one process: no other one writes to them
    "faulty::killed_writer",
    "delayed::killed_writer",
    "mem::sum_killed_adder",
    "faulty::sum_killed_adder",
    "delayed::sum_killed_adder",
    "safetensors_death::a_full_disk_is_full",  # mounting a tmpfs
]

def main():
    reports = sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
    n_tests, bad = 0, 0
    for report in reports:
        for suite in json.loads(report.read_text())["test_suites"]:
            for test in suite["tests"]:
                n_tests += 1
                name = suite["name"] + "::" + test["name"]
                if test["status"] != "SKIPPED":
                    continue
                fine = any(fnmatch.fnmatch(name, pattern) for pattern in MAY_LACK)
                bad += not fine
                print(f"skipped: {name} ({report.stem}){'' if fine else ', which must not be'}")
    print(f"{n_tests} tests in {len(reports)} programs")
    return 1 if bad or n_tests == 0 else 0


sys.exit(main())
