#!/usr/bin/env python3
"""Consumers find the library in every usual way, and nothing of it leaks into them (C73).

Each consumer builds main.cpp in a folder whose name has a space, with every optional dependency declared missing, and runs it.
"""
import os
import pathlib
import shlex
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import checks

# Nothing of this may be needed, or even be looked for, by a project that only includes the headers.
MISSING = ["Eigen3", "doctest", "nlohmann_json", "benchmark", "CLI11", "PkgConfig", "Python3", "CUDAToolkit", "XRT", "Threads"]


class failed(Exception):
    pass


def must(command, **options):
    done = checks.run(command, **options)
    if done.returncode != 0:
        raise failed(f"{shlex.join(str(part) for part in command)}\n{done.stdout}")
    return done.stdout


class package:
    def __init__(self, options, root):
        self.options, self.root = options, root
        self.compiler = options.compiler[0] if options.compiler else "c++"

    def install(self, prefix, component):
        must([self.options.cmake, "--install", self.options.build, "--prefix", prefix, "--component", component])

    def consume(self, folder, *settings, target="consumer", install=None, told=True):
        """`told`: whether one line says that these flags make slow kernels; nothing else of frugal is said."""
        build = self.root / f"build {folder}"
        configured = must([self.options.cmake, "-S", HERE / folder, "-B", build, "-G", self.options.generator,
                           f"-DCMAKE_CXX_COMPILER={self.compiler}", "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF",
                           *[f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in MISSING], *settings])
        said = configured.replace(str(build), "").replace(str(HERE), "").replace(str(checks.SOURCE), "")
        lines = [line for line in said.splitlines() if "frugal" in line]
        if len(lines) != (1 if told else 0) or not all(line.startswith("-- frugal: CMAKE_CXX_FLAGS has no -march") for line in lines):
            raise failed(f"said at configure time, where {1 if told else 0} lines of frugal are expected:\n{configured}")
        must([self.options.cmake, "--build", build, "--target", target, "--parallel", str(self.options.jobs)])
        must([build / target])
        if install:
            must([self.options.cmake, "--build", build, "--parallel", str(self.options.jobs)])
            must([self.options.cmake, "--install", build, "--prefix", install])

    def find_package(self):
        prefix = self.root / "install prefix"
        self.install(prefix, "headers")
        installed = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
        for header in checks.headers():
            if f"include/{header}" not in installed:
                raise failed(f"{header} was not installed")
        stray = [name for name in installed if not name.startswith(("include/frugal/", "share/cmake/frugal/"))]
        if sorted(stray) != ["share/licenses/frugal/LICENSE", "share/pkgconfig/frugal.pc"]:
            raise failed(f"installed besides headers and package files: {stray}")
        # The installation works where it is moved to, and without the sources it came from being mentioned in it.
        moved = self.root / "moved prefix"
        prefix.rename(moved)
        for path in (moved / "share").rglob("*"):
            if path.is_file() and str(checks.SOURCE) in path.read_text():
                raise failed(f"{path} mentions the source folder")
        self.consume("find_package", f"-DCMAKE_PREFIX_PATH={moved}")

    def find_package_kernels(self):
        prefix = self.root / "install prefix"
        self.install(prefix, "headers")
        self.install(prefix, "kernels")
        self.consume("find_package_kernels", f"-DCMAKE_PREFIX_PATH={prefix}", told=False)

    def find_package_models(self):
        """The component models, which needs nothing on this machine but the compiler."""
        prefix = self.root / "install prefix"
        self.install(prefix, "headers")
        self.install(prefix, "kernels")
        self.consume("find_package_models", f"-DCMAKE_PREFIX_PATH={prefix}", told=False)

    def find_package_xrt(self):
        """The component xrt, asked for."""
        prefix = self.root / "install prefix"
        self.install(prefix, "headers")
        self.consume("find_package_xrt", f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_DISABLE_FIND_PACKAGE_XRT=OFF")

    def xrt_subproject(self):
        copy = self.copy_of_source()
        shutil.rmtree(copy / "kernels")
        self.consume("xrt_subproject", f"-DFRUGAL_UNDER_TEST={copy}", "-DCMAKE_DISABLE_FIND_PACKAGE_XRT=OFF")

    def copy_of_source(self):
        """The sources as a consumer has them, in a path with a space; the library needs nothing outside these."""
        copy = self.root / "frugal source"
        copy.mkdir()
        for name in ("CMakeLists.txt", "LICENSE"):
            shutil.copy(checks.SOURCE / name, copy)
        for name in ("include", "cmake", "kernels"):
            shutil.copytree(checks.SOURCE / name, copy / name)
        return copy

    def add_subdirectory(self):
        copy = self.copy_of_source()
        shutil.rmtree(copy / "kernels")  # the headers work without
        self.consume("add_subdirectory", f"-DFRUGAL_UNDER_TEST={copy}")
        for setting in ("-DCMAKE_CXX_FLAGS=-march=x86-64-v2", "-DFRUGAL_QUIET=ON"):
            shutil.rmtree(self.root / "build add_subdirectory")
            self.consume("add_subdirectory", f"-DFRUGAL_UNDER_TEST={copy}", setting, told=False)

    def kernels_subproject(self):
        copy = self.copy_of_source()
        # What one product needs is enough to see that the target works; the whole library is built elsewhere.
        lists = copy / "kernels" / "CMakeLists.txt"
        text = lists.read_text()
        begin = text.index("set(units")
        lists.write_text(text[:begin] + "set(units matmul pack)" + text[text.index(")", begin) + 1:])
        prefix = self.root / "install prefix"
        self.consume("kernels_subproject", f"-DFRUGAL_UNDER_TEST={copy}", install=prefix, told=False)
        if not (prefix / "include" / "frugal" / "frugal.hpp").is_file():
            raise failed("FRUGAL_INSTALL did not install the headers")

    def fetch_content(self):
        self.consume("fetch_content", f"-DFRUGAL_UNDER_TEST={self.copy_of_source()}", "-DFETCHCONTENT_FULLY_DISCONNECTED=ON")

    def fetch_content_override(self):
        """The same consumer, sent to a local folder by FETCHCONTENT_SOURCE_DIR_FRUGAL."""
        self.consume("fetch_content", "-DFRUGAL_UNDER_TEST=/nonexistent", "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
                     f"-DFETCHCONTENT_SOURCE_DIR_FRUGAL={self.copy_of_source()}")

    def pkg_config(self):
        prefix = self.root / "install prefix"
        self.install(prefix, "headers")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "share" / "pkgconfig")}
        flags = must([self.options.pkg_config, "--cflags", "--libs", "frugal >= 0.1"], env=environment)
        program = self.root / "consumer"
        must([self.compiler, "-std=c++20", HERE / "main.cpp", *shlex.split(flags), "-o", program])
        must([program])


def main():
    parser = checks.arguments(__doc__)
    parser.add_argument("consumer")
    parser.add_argument("--build", help="build folder of frugal to install from")
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--generator", default="Ninja")
    parser.add_argument("--pkg-config", default="pkg-config")
    options = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory(prefix="frugal package ") as folder:
        root = pathlib.Path(folder).resolve()
        try:
            getattr(package(options, root), options.consumer)()
        except failed as reason:
            failures.append(str(reason))
    checks.finish(options.consumer, 1, failures)


main()
