#!/usr/bin/env python3
"""Wrong uses must not compile, and the compiler's output must hold our sentence that says what to write.

Each *.cpp here builds as it is. A line `// fails NAME: frugal: sentence` says: with -DNAME it does not, and the output holds the
sentence. `// flags NAME: …` adds flags to such a case, `// flags: …` to all of the file; `// only NAME: gcc` keeps it from clang.
Every `frugal: …` sentence of a static_assert or #error in the headers needs a case. Only assertions at namespace scope (they
start in the first column) are left out: they are about the library's own types or the machine, no user can provoke them.
"""
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

HERE = pathlib.Path(__file__).resolve().parent
FAILS = re.compile(r"^// fails (\w+): (frugal: .*)$", re.MULTILINE)
FLAGS = re.compile(r"^// flags( \w+)?: (.*)$", re.MULTILINE)
ONLY = re.compile(r"^// only (\w+): gcc$", re.MULTILINE)
LITERAL = r'"((?:\\.|[^"\\\n])*)"'
SENTENCE = re.compile(r'"frugal: (?:\\.|[^"\\\n])*"(?:[\s\\]*' + LITERAL + ")*")
ERROR = re.compile(r"#[ \t]*error$")


def sentences(include):
    """Sentence -> header. Literals that stand side by side are one sentence."""
    found = {}
    for name in checks.headers(include):
        text = (pathlib.Path(include) / name).read_text()
        for match in SENTENCE.finditer(text):
            before = text[:match.start()].rstrip().rstrip("\\").rstrip()
            assertion = list(re.finditer(r"\bstatic_assert\b[^;]*$", before))
            if assertion and before.endswith(","):
                start = assertion[-1].start()
                if start == 0 or before[start - 1] == "\n":
                    continue
            elif not ERROR.search(before):
                continue  # a run-time message
            found.setdefault("".join(re.findall(LITERAL, match.group(0))).replace('\\"', '"'), name)
    return found


def squeeze(text):
    return re.sub(r"\s+", " ", text)


def check_files(files, include, compiler_list, base_flags, jobs):
    tasks, failures = [], []
    for path in files:
        text = path.read_text()
        common = [flag for name, value in FLAGS.findall(text) if not name for flag in value.split()]
        cases = FAILS.findall(text)
        if not cases:
            failures.append(f"{path.name} has no `// fails` line")
        for compiler in compiler_list:
            tasks.append((path, compiler, common, None, None))
            for name, sentence in cases:
                if name in ONLY.findall(text) and "clang" in pathlib.Path(compiler).name:
                    continue
                own = [flag for other, value in FLAGS.findall(text) if other.strip() == name for flag in value.split()]
                tasks.append((path, compiler, common + own, name, sentence))
    covered = set()
    with tempfile.TemporaryDirectory() as build:
        # Reading the standard library is most of the work; cases with flags of their own do without.
        prepared = {compiler: checks.prepare_standard(include, compiler, base_flags, build) for compiler in compiler_list}

        def one(task):
            path, compiler, flags, name, _ = task
            command = [compiler, "-std=c++20", "-fsyntax-only", "-I", include, *base_flags, *(flags or prepared[compiler])]
            return checks.run(command + ([f"-D{name}"] if name else []) + [path])
        outcomes = checks.fan_out(one, tasks, jobs)
    for (path, compiler, _, name, sentence), done in zip(tasks, outcomes):
        if name is None:
            if done.returncode != 0:
                failures.append(f"{path.name} with {compiler} should compile:\n{done.stdout}")
        elif done.returncode == 0:
            failures.append(f"{path.name} -D{name} with {compiler} compiles, but must not")
        elif squeeze(sentence) not in squeeze(done.stdout):
            failures.append(f"{path.name} -D{name} with {compiler} does not say `{sentence}`:\n{done.stdout[:3000]}")
        else:
            covered.add(sentence)
    return len(tasks), failures, covered


def check(folder, include, compiler_list, base_flags, jobs):
    checked, failures, covered = check_files(sorted(folder.glob("*.cpp")), include, compiler_list, base_flags, jobs)
    for sentence, header in sorted(sentences(include).items()):
        checked += 1
        if not any(case in sentence for case in covered):
            failures.append(f"no case makes the compiler say `{sentence}` ({header})")
    return checked, failures


def self_test(options):
    header = ('#pragma once\ntemplate <class T>\nstruct only_int {\n    static_assert(sizeof(T) == sizeof(int),\n'
              '                  "frugal: only_int takes "\n                  "an int");\n};\n'
              'inline const char* text() { return "frugal: no assertion"; }\n')
    good = '// fails BAD: frugal: only_int takes an int\n#include "frugal/x.hpp"\n#ifdef BAD\nonly_int<char> c;\n#endif\n'
    variants = {
        "nothing": (header, good),
        "the case compiles": (header, good.replace("char", "int")),
        "another sentence": (header, good.replace("takes an int", "takes a float")),
        "the plain file does not compile": (header, good + "only_int<char> d;\n"),
        "no sentence expected": (header, good.replace("// fails", "// nothing")),
        "a sentence without a case": (header + 'struct y {\n    static_assert(true, "frugal: another sentence");\n};\n', good),
        "a macro's sentence without a case":
            (header + '#define CHECK(x)   \\\n    static_assert(x,   \\\n                  "frugal: another "   \\\n       "sentence")\n', good),
        "an #error without a case": (header + '#if defined(NEVER)\n#error "frugal: another sentence"\n#endif\n', good),
        "another error first": (header, good.replace("only_int<char> c", "no_such_type c")),
    }
    plain = header + 'static_assert(true, "frugal: our own type is right");\n'
    variants["nothing, with an assertion of our own"] = (plain, good)
    failures = []
    for name, (header_text, case) in variants.items():
        with tempfile.TemporaryDirectory() as folder:
            include = pathlib.Path(folder) / "include"
            (include / "frugal").mkdir(parents=True)
            (include / "frugal" / "x.hpp").write_text(header_text)
            (pathlib.Path(folder) / "case.cpp").write_text(case)
            for compiler in checks.compilers(options.compiler):
                _, found = check(pathlib.Path(folder), include, [compiler], options.flags.split(), options.jobs)
                if bool(found) != (not name.startswith("nothing")):
                    failures.append(f"planted fault `{name}` with {compiler}: {found}")
    checks.finish("compile_fail self-test", len(variants), failures)


def main():
    options = checks.arguments(__doc__).parse_args()
    if options.self_test:
        self_test(options)
    checks.finish("compile_fail", *check(HERE, checks.INCLUDE, checks.compilers(options.compiler), options.flags.split(),
                                         options.jobs))


main()
