"""Runs the example programs as a user would: text, options, chat at a terminal, and every kind of bad input.

usage: check_programs.py GENERATE PERPLEXITY MODELS_DIR DATA_DIR
"""
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import to_checkpoint

GENERATE, PERPLEXITY, MODELS, DATA = sys.argv[1:5]
QUICK = ["--n-predict", "8", "--temp", "0"]


def run(program, *options, text=None, **kw):
    return subprocess.run([program, *map(str, options)], input=text, capture_output=True, text=True, timeout=300, **kw)


class Generate(unittest.TestCase):
    def fails(self, *options, says, text=""):
        done = run(GENERATE, *options, text=text)
        self.assertNotEqual(done.returncode, 0, options)
        self.assertGreater(done.returncode, 0, f"{options}: killed by a signal")
        self.assertRegex(done.stdout + done.stderr, says)
        return done

    def test_continues_the_prompt_with_both_models(self):
        for model in ("tiny-qwen35", "tiny-qwen4exp"):
            done = run(GENERATE, "--model", model, "--prompt", "In the beginning", "--n-predict", 16, "--temp", 0)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.startswith("In the beginning"))
            self.assertGreater(len(done.stdout.strip()), len("In the beginning") + 16)
            self.assertEqual(done.stderr, "")

    def test_greedy_text_does_not_depend_on_threads_batches_or_seed(self):
        base = run(GENERATE, "-p", "And God said", *QUICK).stdout
        for options in (["--threads", 1], ["--threads", 2], ["--batch-size", 1], ["--seed", 99]):
            self.assertEqual(run(GENERATE, "-p", "And God said", *QUICK, *options).stdout, base)

    def test_a_seed_repeats_and_another_differs(self):
        def text(seed):
            return run(GENERATE, "-p", "And God said", "-n", 24, "--temp", 1.2, "--seed", seed).stdout

        self.assertEqual(text(3), text(3))
        self.assertGreater(len({text(s) for s in range(4)}), 1)

    def test_each_instruction_set_can_be_forced(self):
        for isa in os.environ["FRUGAL_EXAMPLE_ISAS"].split():
            done = run(GENERATE, "-p", "And", *QUICK, "--stats", env=dict(os.environ, FRUGAL_ISA=isa))
            self.assertRegex(done.stderr, rf"instruction set +{isa}\b")
        done = run(GENERATE, "-p", "And", *QUICK, env=dict(os.environ, FRUGAL_ISA="altivec"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("altivec", done.stderr)

    def test_stats(self):
        done = run(GENERATE, "-p", "And God said", *QUICK, "--stats", "--model", "tiny-qwen4exp")
        for line in ("time to first token", "tokens/s", "weight bytes read", "layout_builds +0", "layout_updates +8"):
            self.assertRegex(done.stderr, line)

    def test_prompt_from_file_and_standard_input(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("And God said")
            file.flush()
            want = run(GENERATE, "-p", "And God said", *QUICK).stdout
            self.assertEqual(run(GENERATE, "--file", file.name, *QUICK).stdout, want)
            self.assertEqual(run(GENERATE, *QUICK, text="And God said").stdout, want)

    def test_bad_input_is_an_error_in_words(self):
        self.fails("--prompt", "", *QUICK, says="prompt is empty")
        self.fails(*QUICK, text="", says="prompt is empty")
        self.fails("--no-such-option", says="no-such-option")
        self.fails("-p", "x", "--model", "/no/such/file.gguf", says="/no/such/file.gguf")
        self.fails("-p", "x", "--model", "no-such-model", says="no-such-model")
        self.fails("--file", "/no/such/prompt.txt", says="/no/such/prompt.txt")
        self.fails("-p", "x", "--temp", "-1", says="temp")
        self.fails("-p", "x", "--top-p", "2", says="top-p")
        self.fails("-p", "x", "--top-p", "0", says="top-p")
        self.fails("-p", "x", "--n-predict", "many", says="n-predict")
        self.fails("-p", "In the beginning God created", "--ctx-size", "3", says=r"prompt has \d+ tokens; the context holds 3")
        with tempfile.TemporaryDirectory() as folder:
            self.fails("-p", "x", "--model", folder, says="model.safetensors")
            for name, content in (("empty.gguf", b""), ("text.gguf", b"this is not a model, but it is long enough to be read as one"),
                                  ("cut.gguf", Path(MODELS, "tiny-qwen35-Q4_K_M.gguf").read_bytes()[:100_000])):
                path = Path(folder, name)
                path.write_bytes(content)
                self.fails("-p", "x", "--model", path, says=re.escape(name))

    def test_a_full_context_keeps_the_text_and_says_so(self):
        done = self.fails("-p", "In the beginning", "--ctx-size", "12", "--n-predict", "64", "--temp", "0", says="context of 12 tokens is full")
        whole = run(GENERATE, "-p", "In the beginning", "--n-predict", "64", "--temp", "0").stdout
        self.assertTrue(whole.startswith(done.stdout.rstrip("\n")))
        self.assertGreater(len(done.stdout), len("In the beginning") + 4)

    def test_qsa_silently_off(self):
        data = bytearray(Path(MODELS, "tiny-qwen4exp-Q4_K_M.gguf").read_bytes())
        key = b"qwen4exp.attention.compress_ratios"
        at = data.index(key) + len(key) + 16
        data[at:at + 32] = bytes(32)
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(data)
            file.flush()
            self.fails("-p", "And God said", "--model", file.name, *QUICK, says="--qsa-ratio")
            mended = run(GENERATE, "-p", "And God said", "--model", file.name, *QUICK, "--qsa-ratio", 4)
            self.assertEqual(mended.stdout, run(GENERATE, "-p", "And God said", "--model", "tiny-qwen4exp", *QUICK).stdout)

    def test_a_hugging_face_directory_gives_the_text_of_the_gguf_file(self):
        source = Path(DATA, "tiny-qwen35")
        with tempfile.TemporaryDirectory(prefix="a checkpoint ") as folder:
            to_checkpoint.convert(source / "tiny-qwen35-BF16.gguf", source / "config.json",
                                  [source / "tokenizer.json", source / "tokenizer_config.json"], folder)
            options = ["-p", "And God said", "-n", 32, "--temp", 0]
            done = run(GENERATE, *options, "--model", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, run(GENERATE, *options, "--model", source / "tiny-qwen35-BF16.gguf").stdout)
            Path(folder, "model-00002-of-00002.safetensors").unlink()
            self.fails("-p", "x", "--model", folder, says="model-00002-of-00002.safetensors")

    def test_chat_at_a_terminal(self):
        parent, child = pty.openpty()
        program = subprocess.Popen([GENERATE, "--n-predict", "6", "--temp", "0"], stdin=child, stdout=child, stderr=child, close_fds=True)
        os.close(child)
        seen = ""

        def read_until(marker, count):
            nonlocal seen
            while seen.count(marker) < count:
                ready, _, _ = select.select([parent], [], [], 120)
                self.assertTrue(ready, f"no prompt in time; so far: {seen!r}")
                seen += os.read(parent, 4096).decode("utf-8", "replace")

        read_until("> ", 1)
        os.write(parent, b"Who was Abraham?\n")
        read_until("> ", 2)
        os.write(parent, b"And Isaac?\n")
        read_until("> ", 3)
        os.write(parent, b"\n")
        self.assertEqual(program.wait(60), 0)
        os.close(parent)


class Perplexity(unittest.TestCase):
    def test_one_window(self):
        ids = Path(DATA, "tiny-qwen35/golden/heldout_ids.txt")
        text = Path(DATA, "tiny-qwen35/golden/heldout.txt")
        options = ["--window", 128, "--windows", 2]
        from_ids = run(PERPLEXITY, "--ids", ids, *options)
        self.assertEqual(from_ids.returncode, 0, from_ids.stderr)
        found = re.search(r"254 predictions, mean nll ([\d.]+), perplexity ([\d.]+)", from_ids.stdout)
        self.assertTrue(found, from_ids.stdout)
        self.assertLess(float(found[2]), 40)
        self.assertEqual(run(PERPLEXITY, "--file", text, *options).stdout, from_ids.stdout)

    def test_bad_input(self):
        for options in ([], ["--file", "/no/such/file"], ["--ids", __file__], ["--file", "/dev/null"]):
            done = run(PERPLEXITY, *options)
            self.assertGreater(done.returncode, 0, options)
            self.assertNotEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
