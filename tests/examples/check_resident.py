"""Runs the examples whose weights are resident images: flash_serve and, where there is XRT, npu_generate.

usage: check_resident.py GENERATE FLASH_SERVE PERPLEXITY MODELS_DIR [NPU_GENERATE]
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from deepen import deepen

GENERATE, FLASH_SERVE, PERPLEXITY, MODELS, *NPU = sys.argv[1:]
QUICK = ["--n-predict", "12", "--temp", "0"]


def run(program, *options, text=None):
    return subprocess.run([program, *map(str, options)], input=text, capture_output=True, text=True, timeout=600)


def counted(done, name):
    found = re.search(rf"^{name} +([0-9.]+)", done.stderr, re.MULTILINE)
    assert found, (name, done.stderr)
    return float(found.group(1))


class FlashServe(unittest.TestCase):
    def test_each_request_is_as_alone_and_packs_nothing_anew(self):
        prompts = ["In the beginning", "And God said", "In the beginning"]
        done = run(FLASH_SERVE, *QUICK, "--stats", text="\n".join(prompts) + "\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        requests = re.findall(r"request \d: (\d+) prompt tokens, first token after ([0-9.]+) ms; (\d+) tokens, ([0-9.]+) tokens/s; "
                              r"(\d+) images packed", done.stderr)
        self.assertEqual(len(requests), 3, done.stderr)
        # All were packed while the model was loaded, so that no request waits for it.
        self.assertGreater(counted(done, "images_packed"), 0)
        self.assertEqual([r[4] for r in requests], ["0", "0", "0"])
        alone = [run(GENERATE, "-p", prompt, *QUICK).stdout[len(prompt):] for prompt in prompts]
        self.assertEqual(done.stdout, "".join(alone))

    def test_devices_give_the_same_text(self):
        texts = {run(FLASH_SERVE, "--device", device, "-p", "And God said", *QUICK).stdout for device in ("cpu", "packed")}
        self.assertEqual(len(texts), 1)

    def test_a_bad_request_fails_alone(self):
        done = run(FLASH_SERVE, *QUICK, "--ctx-size", 32, text="In the beginning\n" + "word " * 100 + "\n\nAnd God said\n")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(re.findall("request \\d: .*tokens/s", done.stderr)), 4)
        self.assertRegex(done.stderr, r"request 2: the prompt has \d+ tokens; the context holds 32")
        self.assertIn("request 3: the prompt is empty", done.stderr)
        self.assertIn("2 of 4 requests failed", done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], run(FLASH_SERVE, *QUICK, "-p", "And God said").stdout.splitlines()[-1])

    def test_nothing_to_serve_is_an_error(self):
        done = run(FLASH_SERVE, *QUICK, text="")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no requests", done.stderr)
        self.assertEqual(run(FLASH_SERVE, "--device", "abacus", "-p", "x").returncode, 2)

    def test_requests_are_rendered_as_generate_renders_them(self):
        tokens = []
        for more in ([], ["--think"], ["--no-think"], ["--no-think", "--system-prompt", "Be brief."], ["--think", "-sys", "Be brief."]):
            served = run(FLASH_SERVE, *QUICK, "--chat", *more, text="And God said\r\n")
            talk = run(GENERATE, *QUICK, "--chat", "--stats", *more, text="And God said\r\n")
            tokens.append(int(re.search(r"request 1: (\d+) prompt tokens", served.stderr)[1]))
            self.assertEqual(tokens[-1], counted(talk, "prompt"), more)
            self.assertEqual(served.stdout, talk.stdout)
        self.assertEqual(tokens[0], tokens[1])  # without a template of its own the file is written as Qwen3.5's, which thinks
        self.assertEqual(len(set(tokens)), 4, tokens)

    def test_what_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([FLASH_SERVE, *QUICK, "-p", "x", "-p", "y"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write to standard output", done.stderr)


@unittest.skipIf("FRUGAL_SANITIZED" in os.environ, "a sanitizer takes memory of its own")
class Memory(unittest.TestCase):
    """The file's pages go while images are packed: no program ever holds both."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = Path(cls.folder.name, "deep.gguf")
        deepen(Path(MODELS, "tiny-qwen35-Q4_K_M.gguf"), 200, cls.model)
        cls.text = Path(cls.folder.name, "text")
        cls.text.write_text("And God said, Let there be light. " * 4)

    def peak(self, program, *options):
        """Most bytes that the program held at once."""
        with open(os.devnull, "w") as nowhere, tempfile.TemporaryFile("w+") as said:
            child = subprocess.Popen([program, "-m", self.model, "-c", "64", *map(str, options)], stdin=subprocess.DEVNULL,
                                     stdout=nowhere, stderr=said)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            self.assertEqual(child.returncode, 0, said.read())
        return usage.ru_maxrss * 1024

    def test_a_program_holds_the_images_and_not_the_file(self):
        prompt = ["-p", "And God said", "-n", 2, "--temp", 0]
        # What is not weights is the same in a model of a few layers, but for the states of the sequence.
        for program, options in ((GENERATE, prompt), (FLASH_SERVE, prompt), (PERPLEXITY, ["--file", self.text, "--window", 16])):
            with self.subTest(program=program):
                peak, file = self.peak(program, *options), self.model.stat().st_size
                self.assertGreater(peak, file)
                self.assertLess(peak, 1.6 * file)


@unittest.skipUnless(NPU, "built without XRT")
class NpuGenerate(unittest.TestCase):
    def test_load_skip_changes_the_work_not_the_text(self):
        for model in ("tiny-qwen35", "tiny-qwen4exp"):
            skip = run(NPU[0], "-m", model, *QUICK, "--stats")
            reload = run(NPU[0], "-m", model, *QUICK, "--stats", "--reload")
            self.assertEqual(skip.returncode, 0, skip.stderr)
            self.assertTrue(skip.stdout.startswith("In the beginning"))
            self.assertEqual(skip.stdout, reload.stdout)
            self.assertEqual(counted(reload, "loads_skipped"), 0)
            self.assertGreater(counted(skip, "loads_skipped"), 0)
            self.assertGreater(counted(reload, "dequantized_bytes"), 5 * counted(skip, "dequantized_bytes"))
            for done in (skip, reload):
                self.assertEqual(counted(done, "host_fallbacks"), 0)

    def test_a_small_device_is_said_and_is_right(self):
        done = run(NPU[0], *QUICK, "--device-memory", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"the host computed \d+ products in place of the device: .*memory")
        self.assertTrue(done.stdout.startswith("In the beginning"))
        strict = run(NPU[0], *QUICK, "--device-memory", 1, "--strict")
        self.assertEqual(strict.returncode, 1)
        self.assertRegex(strict.stderr, "npu_generate: .*memory")

    def test_serving_on_it(self):
        done = run(FLASH_SERVE, "--device", "npu", *QUICK, "-p", "In the beginning", "-p", "In the beginning")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines) % 2, 0)
        self.assertEqual(lines[:len(lines) // 2], lines[len(lines) // 2:])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
