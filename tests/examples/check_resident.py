"""Runs the examples whose weights are resident images: flash_serve and, where there is XRT, npu_generate.

usage: check_resident.py GENERATE FLASH_SERVE [NPU_GENERATE]
"""
import re
import subprocess
import sys
import unittest

GENERATE, FLASH_SERVE, *NPU = sys.argv[1:]
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
        done = run(FLASH_SERVE, *QUICK, text="\n".join(prompts) + "\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        requests = re.findall(r"request \d: (\d+) prompt tokens, first token after ([0-9.]+) ms; (\d+) tokens, ([0-9.]+) tokens/s; "
                              r"(\d+) images packed", done.stderr)
        self.assertEqual(len(requests), 3, done.stderr)
        self.assertGreater(int(requests[0][4]), 0)
        self.assertEqual([r[4] for r in requests[1:]], ["0", "0"])
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
        self.assertEqual(done.returncode, 1)
        self.assertIn("no requests", done.stderr)
        self.assertNotEqual(run(FLASH_SERVE, "--device", "abacus", "-p", "x").returncode, 0)


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
