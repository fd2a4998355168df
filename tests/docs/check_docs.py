#!/usr/bin/env python3
"""The code in the READMEs compiles and says what it claims, and their links and file names exist."""
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
SCRIPT = re.compile(r"\bsh ((?:[\w.-]+/)*[\w.-]+\.sh)\b")
CLAIM = re.compile(r"std::printf.*?// (.+)$", re.MULTILINE)


def check_text(name, text, folder, root, compiler_list, flags, build):
    found, checked = [], 0
    for target in LINK.findall(BLOCK.sub("", text)):  # a lambda looks like a link
        checked += 1
        if not (folder / target).exists():
            found.append(f"{name}: the link {target} leads nowhere")
    for script in SCRIPT.findall(text):
        checked += 1
        if not (root / script).is_file():
            found.append(f"{name}: there is no {script}")
    for language, code in BLOCK.findall(text):
        if language != "cpp":
            continue
        for compiler in compiler_list:
            checked += 1
            program = pathlib.Path(build) / "snippet"
            source = pathlib.Path(build) / "snippet.cpp"
            source.write_text(code)
            done = checks.run([compiler, "-std=c++20", *flags, "-I", root / "include", source, "-o", program])
            if done.returncode != 0:
                found.append(f"{name}: a snippet does not compile with {compiler}:\n{done.stdout}")
                continue
            ran = checks.run([program])
            claims = CLAIM.findall(code)
            if ran.returncode != 0 or (claims and ran.stdout.split("\n")[:-1] != claims):
                found.append(f"{name}: a snippet prints {ran.stdout!r}, status {ran.returncode}; it says {claims}")
    return checked, found


def readmes(root):
    return sorted(path for path in root.rglob("README.md") if not any(part.startswith(("build", ".")) for part in path.relative_to(root).parts))


def check(root, compiler_list, flags, build):
    checked, found = 0, []
    for path in readmes(root):
        more, problems = check_text(str(path.relative_to(root)), path.read_text(), path.parent, root, compiler_list, flags, build)
        checked += more
        found += problems
    # Each directory of the top level and each layer says what lives there.
    wanted = [root, *(root / name for name in ("include/frugal", "kernels", "examples", "bench", "tests", "cmake"))]
    wanted += [path for path in (root / "include" / "frugal").iterdir() if path.is_dir()]
    for folder in wanted:
        checked += 1
        if not (folder / "README.md").is_file():
            found.append(f"{folder.relative_to(root)} has no README.md")
    return checked, found


def self_test(options):
    good = "[a](x.md) `sh run.sh`\n```cpp\n#include <cstdio>\nint main() {\n    std::printf(\"1\\n\");  // 1\n}\n```\n"
    variants = {"nothing": good, "a dead link": good.replace("x.md", "y.md"), "a missing script": good.replace("run.sh", "no.sh"),
                "a snippet that does not compile": good.replace("std::printf", "std::print_it"),
                "a wrong claim": good.replace("// 1", "// 2"), "a failing snippet": good.replace("\n}\n", "\n    return 1;\n}\n")}
    failures = []
    for name, text in variants.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for file in ("x.md", "run.sh"):
                (root / file).write_text("")
            _, found = check_text("README.md", text, root, root, checks.compilers(options.compiler)[:1], options.flags.split(), folder)
            if bool(found) != (name != "nothing"):
                failures.append(f"planted fault `{name}`: {found}")
    checks.finish("docs self-test", len(variants), failures)


def main():
    options = checks.arguments(__doc__).parse_args()
    if options.self_test:
        self_test(options)
    with tempfile.TemporaryDirectory() as build:
        checks.finish("docs", *check(checks.SOURCE, checks.compilers(options.compiler), ["-Wall", "-Wextra", "-Werror"], build))


main()
