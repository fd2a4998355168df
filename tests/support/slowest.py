#!/usr/bin/env python3
"""What of a build and of its tests took longest: slowest.py BUILD SINCE, seconds of the clock at which the build began.

Of several programs that run at once each shows the time that it shared.
"""
import pathlib
import re
import sys

HOW_MANY = 10


def units(build, since):
    """(seconds, output) of what ninja made since then."""
    found = {}
    log = build / ".ninja_log"
    for line in log.read_text().splitlines()[1:] if log.is_file() else []:
        begin, end, _, output, *_ = line.split("\t")
        made = build / output
        if made.is_file() and made.stat().st_mtime >= since:
            found[output] = (int(end) - int(begin)) / 1000
    return [(seconds, re.sub(r"CMakeFiles/(\w+)\.dir/", r"\1: ", output)) for output, seconds in found.items()]


def tests(build):
    """(seconds, name) of the tests that ctest ran last."""
    log = build / "Testing" / "Temporary" / "LastTest.log"
    text = log.read_text(errors="replace") if log.is_file() else ""
    names = r"^\d+/\d+ Test: (\S+)$"
    return [(float(seconds), name)
            for name, rest in zip(re.findall(names, text, re.MULTILINE), re.split(names, text, flags=re.MULTILINE)[2::2])
            for seconds in re.findall(r"^Test time = +([\d.]+) sec$", rest, re.MULTILINE)]


def main():
    build, since = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    for what, found in (("units", units(build, since)), ("tests", tests(build))):
        if found:
            print(f"slowest {what}:")
            for seconds, name in sorted(found, reverse=True)[:HOW_MANY]:
                print(f"  {seconds:7.1f} s  {name}")


main()
