#!/usr/bin/env python3
"""The rules of the source tree that no compiler checks: which way includes go, and what a header may not contain.

The layers and their order are those of include/frugal/README.md.
"""
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

RANK = {"core": 0, "tensor": 1, "quant": 2, "device": 3, "ops": 4, "reuse": 5, "attention": 6, "layer": 7, "model": 8}
TOP_LEVEL = {"policies.hpp": 5, "frugal.hpp": 9}  # headers directly in include/frugal, and the layer they may reach up to
IO_MAY = {"core", "tensor", "quant", "io"}
IO_READERS = {"io", "model"}  # who may include io/
NEVER = {"iostream", "regex", "ranges"}
VENDOR = re.compile(r"^(cuda\w*\.h|cublas\w*\.h|cuda_\w+\.h|cuda/|cub/|thrust/|xrt/|experimental/xrt|xrt\.h|ert\.h)")
XRT = "frugal/device/xrt/"  # XRT throws
CUDA = "frugal/device/cuda/"
IMAGES = (XRT, CUDA, "frugal/device/cpu/pack")  # devices that hold packed weights; the others know no formats
MOST_LINES = 500
LONGER = {"frugal/model/cuda_decoder.hpp": 530}  # not cut yet
MOST_COLUMNS = 130

INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
NAMESPACE_LINE = re.compile(r"^[ \t]*(?:inline[ \t]+)?namespace[ \t]+frugal\b", re.MULTILINE)
LAYER_NAMESPACE = re.compile(r"^namespace[ \t]+(\w+)", re.MULTILINE)
EXCEPTION = re.compile(r"\b(throw|try|catch)\b(?!_)")
ANONYMOUS = re.compile(r"\bnamespace[ \t]*\{")
FREE_STATIC = re.compile(r"^static\b(?!_assert)", re.MULTILINE)
MENTION = re.compile(r"(?<![\w./<$-])((?:[\w-]+/)+[\w-]+\.(?:hpp|cuh))\b")
USING_NAMESPACE = re.compile(r"^[ \t]*using[ \t]+namespace\b", re.MULTILINE)


def without_comments(text):
    """Comments and string literals become blanks, so that words in them are not taken for code."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    def blank(match):
        piece = match.group(0)
        if piece.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", piece)
        return '"' + re.sub(r"[^\n]", " ", piece[1:-1]) + '"'
    return pattern.sub(blank, text)


def check_header(name, text):
    """Violations of one header; `name` is relative to include/, e.g. frugal/ops/matmul/matmul.hpp."""
    found = []
    def report(rule):
        found.append(f"{name}: {rule}")
    parts = name.split("/")[1:]
    layer = parts[0] if len(parts) > 1 else None
    code = without_comments(text)

    lines = text.split("\n")
    if not lines or lines[0].strip() != "#pragma once":
        report("the first line must be #pragma once")
    most_lines = LONGER.get(name, MOST_LINES)
    if len(lines) > most_lines:
        report(f"{len(lines)} lines; at most {most_lines}")
    for number, line in enumerate(lines, 1):
        if len(line) > MOST_COLUMNS:
            report(f"line {number} has {len(line)} columns; at most {MOST_COLUMNS}")
        if "\t" in line or line != line.rstrip():
            report(f"line {number} has a tab or trailing blanks")

    if layer is None and parts[0] not in TOP_LEVEL:
        report(f"headers directly in include/frugal are {sorted(TOP_LEVEL)}; put this one into a layer")
        return found
    if layer is not None and layer != "io" and layer not in RANK:
        report(f"{layer}/ is not a layer")
        return found
    for match in INCLUDE_LINE.finditer(text):
        quote, included = match.groups()
        if quote == '"':
            if not included.startswith("frugal/"):
                report(f'"{included}": include by full path, "frugal/…"')
                continue
            if included.endswith("-inl.hpp"):
                stem = included[:-len("-inl.hpp")]
                if name not in (stem + ".hpp",) and not name.endswith("-inl.hpp"):
                    report(f"{included}: only {stem}.hpp and other definitions include definitions")
            target = included.split("/")[1:]
            other = target[0] if len(target) > 1 else None
            if other is None:
                allowed = layer is None or (layer in RANK and RANK[layer] > TOP_LEVEL.get(target[0], 99))
            elif other == "io":
                allowed = layer in IO_READERS
            elif other not in RANK:
                allowed = False
            elif layer == "io":
                allowed = other in IO_MAY
            elif layer is None:
                allowed = RANK[other] <= TOP_LEVEL[parts[0]]
            else:
                allowed = RANK[other] <= RANK[layer] and not (layer == "device" and other == "quant" and not name.startswith(IMAGES))
            if not allowed:
                report(f"{included} is not below {layer or parts[0]}/")
        else:
            if included in NEVER:
                report(f"<{included}> is too heavy for a header")
            if included.startswith(("Eigen/", "unsupported/Eigen")) and "eigen" not in parts[-1]:
                report(f"<{included}>: Eigen only in headers whose name says so")
            if VENDOR.match(included) and not any(f"/{folder}" in f"/{'/'.join(parts)}" for folder in checks.VENDOR_DIRECTORIES):
                report(f"<{included}>: vendor headers only in device/cuda and device/xrt")
            if included.startswith("frugal/"):
                report(f'<{included}>: include our own headers with quotes')

    if name != "frugal/core/config.hpp" and NAMESPACE_LINE.search(code):
        report("open the namespace with FRUGAL_NAMESPACE_BEGIN")
    if code.count("FRUGAL_NAMESPACE_BEGIN") != code.count("FRUGAL_NAMESPACE_END"):
        report("FRUGAL_NAMESPACE_BEGIN and _END do not pair up")
    if name != "frugal/core/config.hpp" and ("namespace" in code) and "FRUGAL_NAMESPACE_BEGIN" not in code:
        report("a namespace outside FRUGAL_NAMESPACE_BEGIN")
    for opened in LAYER_NAMESPACE.findall(code):
        if layer in RANK and RANK.get(opened, RANK[layer]) < RANK[layer]:
            report(f"namespace {opened}: what a layer declares is defined in that layer")
    if EXCEPTION.search(code) and not name.startswith(XRT):
        report("throw, try and catch: errors are returned")
    if ANONYMOUS.search(code):
        report("no anonymous namespace in a header")
    if FREE_STATIC.search(code):
        report("no static function or variable at namespace scope; use inline")
    if USING_NAMESPACE.search(code):
        report("no using namespace in a header")
    return found


def beside_the_umbrella(name):
    """Headers that frugal/frugal.hpp leaves out: definitions, and what needs more than the standard library."""
    return name.endswith("-inl.hpp") or "/io/" in name or "eigen" in name or any(folder in name for folder in checks.VENDOR_DIRECTORIES)


def check_umbrella(texts):
    """frugal/frugal.hpp reaches every header, except those that are beside it on purpose."""
    umbrella = "frugal/frugal.hpp"
    if umbrella not in texts:
        return [f"{umbrella} is missing"]
    found, reached, todo = [], set(), [umbrella]
    while todo:
        name = todo.pop()
        if name in reached or name not in texts:
            continue
        reached.add(name)
        todo += [included for quote, included in INCLUDE_LINE.findall(texts[name]) if quote == '"']
    needs_more = {name for name in texts if beside_the_umbrella(name) and not name.endswith("-inl.hpp")}
    changed = True
    while changed:  # what includes a header that needs more needs more itself
        before = len(needs_more)
        needs_more |= {name for name, text in texts.items() if name != umbrella and
                       any(included in needs_more for _, included in INCLUDE_LINE.findall(text))}
        changed = len(needs_more) != before
    found += [f"{name}: not reached from {umbrella}" for name in sorted(texts)
              if name not in reached and name not in needs_more and not beside_the_umbrella(name)]
    found += [f"{name}: needs more than the standard library, but is reached from {umbrella}" for name in sorted(reached & needs_more)]
    return found


def check_mentions(texts):
    """Headers that comments and READMEs name are there: by their path below include/, include/frugal/, the layer or the folder."""
    found = []
    for name, text in texts.items():
        folder = pathlib.PurePosixPath(name).parent
        bases = ["", "frugal", "/".join(name.split("/")[:2]), str(folder)]
        for line in text.split("\n"):
            if INCLUDE_LINE.match(line):
                continue
            for mentioned in MENTION.findall(line):
                if not any(str(pathlib.PurePosixPath(base) / mentioned) in texts for base in bases):
                    found.append(f"{name}: there is no {mentioned}")
    return found


def check(include):
    texts = {name: (pathlib.Path(include) / name).read_text() for name in checks.headers(include)}
    kernels = {str(path.relative_to(include)): path.read_text() for path in sorted(pathlib.Path(include).rglob("*.cuh"))}
    found = [violation for name, text in {**texts, **kernels}.items() for violation in check_header(name, text)]
    readmes = {str(path.relative_to(include)): path.read_text() for path in sorted(pathlib.Path(include).rglob("*.md"))}
    root = pathlib.Path(include).parent
    everything = {str(path.relative_to(base)): "" for base, folder in ((include, "."), (root, "tests"), (root, "bench"))
                  for path in (pathlib.Path(base) / folder).rglob("*.hpp")}
    found += check_mentions({**everything, **texts, **kernels, **readmes})
    return len(texts) + len(kernels) + len(readmes) + 1, found + check_umbrella(texts)


HEAD = '#pragma once\n#include "frugal/core/config.hpp"\n'
BODY = "FRUGAL_NAMESPACE_BEGIN\nFRUGAL_NAMESPACE_END\n"
GOOD = {
    "frugal/ops/norm/norm.hpp": HEAD + '#include <cstddef>\n#include "frugal/device/cpu/cpu.hpp"\n// try to throw: namespace {\n' + BODY,
    "frugal/ops/norm/norm_cpu.hpp": HEAD + BODY + '#include "frugal/ops/norm/norm_cpu-inl.hpp"\n',
    "frugal/io/gguf.hpp": HEAD + '#include "frugal/quant/list.hpp"\n' + BODY,
    "frugal/model/qwen.hpp": HEAD + '#include "frugal/io/gguf.hpp"\n#include "frugal/policies.hpp"\n' + BODY,
    "frugal/device/cuda/cuda.hpp": HEAD + "#include <cuda_runtime.h>\n" + BODY,
    "frugal/device/xrt/xrt.hpp": HEAD + '#include <xrt/xrt_bo.h>\n#include "frugal/quant/tiles.hpp"\n' + "FRUGAL_NAMESPACE_BEGIN\n"
                                 "inline void f() {\n    try {\n    } catch (...) {\n    }\n}\nFRUGAL_NAMESPACE_END\n",
    "frugal/device/cpu/eigen_executor.hpp": HEAD + "#include <Eigen/Core>\n" + BODY,
    "frugal/frugal.hpp": HEAD + '#include "frugal/model/qwen.hpp"\n',
}
BAD = {
    "include goes up": ("frugal/ops/norm/norm.hpp", HEAD + '#include "frugal/attention/batch.hpp"\n' + BODY),
    "device knows formats": ("frugal/device/cpu/x.hpp", HEAD + '#include "frugal/quant/list.hpp"\n' + BODY),
    "reuse reaches attention": ("frugal/reuse/x.hpp", HEAD + '#include "frugal/attention/batch.hpp"\n' + BODY),
    "layer reads files": ("frugal/layer/x.hpp", HEAD + '#include "frugal/io/gguf.hpp"\n' + BODY),
    "io runs kernels": ("frugal/io/x.hpp", HEAD + '#include "frugal/ops/matmul/matmul.hpp"\n' + BODY),
    "io uses a device": ("frugal/io/x.hpp", HEAD + '#include "frugal/device/target.hpp"\n' + BODY),
    "ops uses policies": ("frugal/ops/x.hpp", HEAD + '#include "frugal/policies.hpp"\n' + BODY),
    "layer includes everything": ("frugal/layer/x.hpp", HEAD + '#include "frugal/frugal.hpp"\n' + BODY),
    "not a layer": ("frugal/util/x.hpp", HEAD + BODY),
    "stray header": ("frugal/x.hpp", HEAD + BODY),
    "relative include": ("frugal/ops/x.hpp", HEAD + '#include "norm.hpp"\n' + BODY),
    "angle include": ("frugal/ops/x.hpp", HEAD + "#include <frugal/core/error.hpp>\n" + BODY),
    "definitions from elsewhere": ("frugal/ops/x.hpp", HEAD + '#include "frugal/ops/norm/norm_cpu-inl.hpp"\n' + BODY),
    "iostream": ("frugal/ops/x.hpp", HEAD + "#include <iostream>\n" + BODY),
    "regex": ("frugal/io/x.hpp", HEAD + "#  include <regex>\n" + BODY),
    "Eigen": ("frugal/ops/x.hpp", HEAD + "#include <Eigen/Core>\n" + BODY),
    "CUDA in ops": ("frugal/ops/x.hpp", HEAD + "#include <cuda_runtime.h>\n" + BODY),
    "experimental XRT in device": ("frugal/device/x.hpp", HEAD + "#include <experimental/xrt_xclbin.h>\n" + BODY),
    "catch beside XRT": ("frugal/device/x.hpp", HEAD + "FRUGAL_NAMESPACE_BEGIN\ninline void f() { try { } catch (...) { } }\n"
                                                       "FRUGAL_NAMESPACE_END\n"),
    "XRT in device": ("frugal/device/x.hpp", HEAD + "#include <xrt/xrt_bo.h>\n" + BODY),
    "no pragma once": ("frugal/ops/x.hpp", '#include "frugal/core/config.hpp"\n' + BODY),
    "namespace by hand": ("frugal/ops/x.hpp", HEAD + "namespace frugal {\n}\n"),
    "namespace by hand, nested": ("frugal/ops/x.hpp", HEAD + BODY + "namespace frugal::ops {\n}\n"),
    "foreign namespace": ("frugal/ops/x.hpp", HEAD + "namespace other {\n}\n"),
    "defines what a layer below declares": ("frugal/ops/x.cuh", HEAD + "FRUGAL_NAMESPACE_BEGIN\nnamespace device::gpu {\n}\n"
                                                                       "FRUGAL_NAMESPACE_END\n"),
    "namespace left open": ("frugal/ops/x.hpp", HEAD + "FRUGAL_NAMESPACE_BEGIN\n"),
    "throw": ("frugal/ops/x.hpp", HEAD + "FRUGAL_NAMESPACE_BEGIN\ninline void f() { throw 1; }\nFRUGAL_NAMESPACE_END\n"),
    "anonymous namespace": ("frugal/ops/x.hpp", HEAD + "FRUGAL_NAMESPACE_BEGIN\nnamespace {\n}\nFRUGAL_NAMESPACE_END\n"),
    "static function": ("frugal/ops/x.hpp", HEAD + "FRUGAL_NAMESPACE_BEGIN\nstatic int f() { return 1; }\nFRUGAL_NAMESPACE_END\n"),
    "using namespace": ("frugal/ops/x.hpp", HEAD + "FRUGAL_NAMESPACE_BEGIN\nusing namespace std;\nFRUGAL_NAMESPACE_END\n"),
    "long line": ("frugal/ops/x.hpp", HEAD + BODY + "//" + "x" * 140 + "\n"),
    "long header": ("frugal/ops/x.hpp", HEAD + BODY + "//\n" * MOST_LINES),
}


def self_test():
    failures = []
    for name, text in GOOD.items():
        failures += [f"good header reported: {found}" for found in check_header(name, text)]
    for fault, (name, text) in BAD.items():
        if not check_header(name, text):
            failures.append(f"planted fault not found: {fault}")
    umbrella = {"frugal/frugal.hpp": '#include "frugal/core/a.hpp"\n', "frugal/core/a.hpp": "", "frugal/io/gguf.hpp": "",
                "frugal/model/loader.hpp": '#include "frugal/io/gguf.hpp"\n', "frugal/ops/x-inl.hpp": ""}
    failures += check_umbrella(umbrella)
    if not check_umbrella({**umbrella, "frugal/core/b.hpp": ""}):
        failures.append("planted fault not found: the umbrella misses a header")
    if not check_umbrella({**umbrella, "frugal/core/a.hpp": '#include "frugal/model/loader.hpp"\n'}):
        failures.append("planted fault not found: the umbrella reaches io")
    named = {"frugal/ops/a.hpp": "// ops/a.hpp and panel/b.hpp say more\n", "frugal/ops/panel/b.hpp": '#include "frugal/x/y.hpp"\n'}
    failures += check_mentions(named)
    if not check_mentions({**named, "frugal/README.md": "see `ops/c.hpp`\n"}):
        failures.append("planted fault not found: a header that is not there is named")
    with tempfile.TemporaryDirectory() as folder:  # the walk over a tree finds it too
        path = pathlib.Path(folder) / "frugal" / "ops"
        path.mkdir(parents=True)
        for name in ("x.hpp", "x.cuh"):
            (path / name).write_text("#include <iostream>\n")
            if not any("iostream" in violation for violation in check(folder)[1]):
                failures.append(f"planted fault not found in a tree, {name}")
            (path / name).unlink()
    checks.finish("layers self-test", len(GOOD) + len(BAD) + 7, failures)


def main():
    options = checks.arguments(__doc__).parse_args()
    if options.self_test:
        self_test()
    checks.finish("layers", *check(checks.INCLUDE))


main()
