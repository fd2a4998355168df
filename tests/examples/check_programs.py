"""Runs the example programs as a user would: text, options, chat at a terminal, and every kind of bad input.

usage: check_programs.py GENERATE PERPLEXITY MODELS_DIR DATA_DIR
"""
import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import to_checkpoint

GENERATE, PERPLEXITY, MODELS, DATA = sys.argv[1:5]
QUICK = ["--n-predict", "8", "--temp", "0"]
EDITOR = os.environ.get("FRUGAL_EXAMPLE_EDITOR")


def run(program, *options, text=None, **kw):
    return subprocess.run([program, *map(str, options)], input=text, capture_output=True, text=True, timeout=300, **kw)


def counted(done, name):
    found = re.search(rf"^{name} +([0-9.]+)", done.stderr, re.MULTILINE)
    assert found, (name, done.stderr)
    return float(found.group(1))


class Generate(unittest.TestCase):
    def fails(self, *options, says, text="", code=1):
        done = run(GENERATE, *options, text=text)
        self.assertEqual(done.returncode, code, (options, done.stderr))
        self.assertRegex(done.stderr, says)
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
        for line in ("^time to first token .* ms$", "^prompt +3 tokens in .* tokens/s$", "^generated +8 tokens in .* tokens/s$",
                     "^weight bytes read .* MB for a generated token$", "^layout_builds +0$", "^layout_updates +8$"):
            self.assertRegex(done.stderr, re.compile(line, re.MULTILINE))
        done = run(GENERATE, "-p", "And God said", *QUICK, "--stats")
        self.assertNotIn("layout", done.stderr)
        self.assertNotIn("host_fallbacks", done.stderr)

    def test_prompt_from_file_and_standard_input(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("And God said")
            file.flush()
            want = run(GENERATE, "-p", "And God said", *QUICK).stdout
            self.assertEqual(run(GENERATE, "--file", file.name, *QUICK).stdout, want)
            self.assertEqual(run(GENERATE, *QUICK, text="And God said").stdout, want)

    def test_bad_input_is_an_error_in_words(self):
        self.fails("-p", "x", "--model", "/no/such/file.gguf", says="/no/such/file.gguf")
        self.fails("-p", "x", "--model", "no-such-model", says="no-such-model")
        self.fails("--file", "/no/such/prompt.txt", says="/no/such/prompt.txt")
        self.fails("-p", "In the beginning God created", "--ctx-size", "3", says=r"prompt has \d+ tokens; the context holds 3")
        with tempfile.TemporaryDirectory() as folder:
            self.fails("-p", "x", "--model", folder, says="model.safetensors")
            for name, content in (("empty.gguf", b""), ("text.gguf", b"this is not a model, but it is long enough to be read as one"),
                                  ("cut.gguf", Path(MODELS, "tiny-qwen35-Q4_K_M.gguf").read_bytes()[:100_000])):
                path = Path(folder, name)
                path.write_bytes(content)
                self.fails("-p", "x", "--model", path, says=re.escape(name))

    def test_wrong_use_ends_with_2_and_a_sentence(self):
        self.fails("--prompt", "", *QUICK, says="prompt is empty", code=2)
        self.fails(*QUICK, text="", says="prompt is empty", code=2)
        self.fails("--no-such-option", says="no-such-option", code=2)
        self.fails("-p", "x", "-f", "y", says="--file", code=2)
        self.fails("--chat", "--json", says="--json is for one text", code=2)
        for option, *values in (("--temp", "-1", "nan", "inf", "1e39", "hot"), ("--top-p", "0", "2", "nan"), ("--min-p", "-0.1", "1.5"),
                                ("--top-k", "-1", "2.5"), ("--n-predict", "many", "-2"), ("--ctx-size", "-1", "1e3"),
                                ("--threads", "-1", "1000000"), ("--batch-size", "0", "-1"), ("--seed", "-2", "x", "1.5"),
                                ("--repeat-penalty", "0", "-1", "nan"), ("--repeat-last-n", "-1"), ("--presence-penalty", "inf", "x"),
                                ("--frequency-penalty", "nan"), ("--qsa-ratio", "-1"), ("--stop", ""),
                                ("--logit-bias", "5", "5*1", "-1+1", "5+x", "+5+1", "5+inf", "5+nan", "2048+1")):
            for value in values:
                done = self.fails("-p", "x", option, value, says=rf"^generate: {option}: (must be|the model has no) .*\n.*--help", code=2)
                self.assertEqual(len(done.stderr.splitlines()), 2)

    def test_help_and_version(self):
        for option, says in (("--help", "--repeat-penalty"), ("--version", r"^generate \(frugal \d+\.\d+\.\d+\)\n$")):
            done = run(GENERATE, option)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, says)

    def test_what_cannot_be_written_is_an_error(self):
        for program, *options in ((GENERATE, "-p", "x", *QUICK), (GENERATE, "-p", "x", *QUICK, "--json"), (GENERATE, "--help"),
                                  (GENERATE, "--chat", "-p", "x", *QUICK),
                                  (PERPLEXITY, "-f", Path(DATA, "tiny-qwen35/golden/heldout.txt"), "--windows", 1)):
            with open("/dev/full", "w") as full:
                done = subprocess.run([program, *map(str, options)], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                      text=True, timeout=300)
            self.assertEqual(done.returncode, 1, options)
            self.assertIn("cannot write to standard output: No space left on device", done.stderr)

    def test_a_full_context_keeps_the_text_and_says_so(self):
        done = self.fails("-p", "In the beginning", "--ctx-size", "12", "--n-predict", "64", "--temp", "0", says="context of 12 tokens is full")
        whole = run(GENERATE, "-p", "In the beginning", "--n-predict", "64", "--temp", "0").stdout
        self.assertTrue(whole.startswith(done.stdout.rstrip("\n")))
        self.assertGreater(len(done.stdout), len("In the beginning") + 4)
        done = run(GENERATE, "-p", "In the beginning", "--ctx-size", "12", "--temp", "0", "--stats", "--json")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"generated +9 tokens in [\d.]+ ms, (?!0\.0 )[\d.]+ tokens/s")
        self.assertEqual(json.loads(done.stdout)["ending"], "context_full")

    def test_a_context_beyond_the_model_s_is_a_warning(self):
        done = run(GENERATE, "-p", "And", *QUICK, "-c", 5000)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"^warning: a context of 5000 tokens is beyond the \d+ that the model was trained for\n$")

    def test_json_is_one_object_and_nothing_else(self):
        want = run(GENERATE, "-p", "And God said", *QUICK, "--no-display-prompt").stdout
        done = run(GENERATE, "-p", "And God said", *QUICK, "--json", "--seed", 7)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        got = json.loads(done.stdout)
        self.assertEqual((got["prompt"], got["text"] + "\n", got["ending"], got["seed"]), ("And God said", want, "length", 7))
        self.assertEqual((got["tokens"]["prompt"], got["tokens"]["generated"]), (3, 8))
        self.assertEqual(set(got["milliseconds"]), {"loading", "prompt", "first_token", "generation"})
        self.assertGreater(min(*got["milliseconds"].values(), *got["tokens_per_second"].values()), 0)
        talk = run(GENERATE, "--chat", "-p", "And God said", *QUICK, "--json")
        self.assertEqual((talk.returncode, talk.stderr), (0, ""))
        self.assertGreater(json.loads(talk.stdout)["tokens"]["prompt"], 3)

    def test_tokens_are_chosen_as_the_options_say(self):
        def text(*options, temp=0):
            done = run(GENERATE, "-p", "And God said", "-n", 24, "--temp", temp, "--no-display-prompt", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        base = text()
        # A min-p of 1 leaves the likeliest token alone; without it a high temperature does not.
        self.assertEqual(text("--min-p", 1, "--top-k", 0, "--top-p", 1, temp=1.5), base)
        self.assertNotEqual(text("--top-k", 0, "--top-p", 1, temp=1.5), base)
        penalised = {text("--repeat-penalty", 1.8), text("--presence-penalty", 4), text("--frequency-penalty", 4)}
        self.assertNotIn(base, penalised)
        self.assertEqual(text("--repeat-penalty", 1.8, "--repeat-last-n", 0), base)
        # Every token may be ruled out, and any may be all that comes.
        forced = json.loads(run(GENERATE, "-p", "And", "-n", 3, "--temp", 0, "--json", "-l", "300+1000").stdout)["text"]
        self.assertEqual(len(set(forced[i::len(forced) // 3] for i in range(len(forced) // 3))), len(forced) // 3)
        self.assertEqual(forced, forced[:len(forced) // 3] * 3)
        other = json.loads(run(GENERATE, "-p", "And", "-n", 3, "--temp", 0, "--json", "-l", "300+1000", "-l", "300-inf").stdout)["text"]
        self.assertNotIn(forced[:len(forced) // 3], other)

    def test_a_random_seed_is_said(self):
        done = [run(GENERATE, "-p", "And God said", "-n", 24, "--temp", 1.2, "--seed", -1, "--stats") for _ in range(3)]
        seeds = [re.search(r"^seed +(\d+)$", each.stderr, re.MULTILINE)[1] for each in done]
        self.assertEqual(len(set(seeds)), 3)
        again = run(GENERATE, "-p", "And God said", "-n", 24, "--temp", 1.2, "--seed", seeds[0])
        self.assertEqual(again.stdout, done[0].stdout)

    def test_stop_texts_end_the_text_and_may_span_tokens(self):
        options = ["-p", "And God said", "-n", 24, "--temp", 0]
        whole = run(GENERATE, *options, "--no-display-prompt").stdout.rstrip("\n")
        for begin in range(1, len(whole) - 4):
            stop = whole[begin:begin + 4]
            if begin % 7 == 1 or " " in stop[1:3]:
                done = run(GENERATE, *options, "--json", "--stop", "never there", "--stop", stop)
                got = json.loads(done.stdout)
                self.assertEqual((got["text"], got["ending"]), (whole[:whole.index(stop)], "stop_text"), stop)
        # The beginning of a stop text that does not come is text.
        self.assertEqual(run(GENERATE, *options, "--no-display-prompt", "--stop", whole[-3:] + "never there").stdout.rstrip("\n"), whole)

    def test_n18_a_byte_order_mark_is_not_text(self):
        with tempfile.NamedTemporaryFile("wb", suffix=".txt") as file:
            file.write(b"\xef\xbb\xbfAnd God said")
            file.flush()
            want = run(GENERATE, "-p", "And God said", *QUICK).stdout
            self.assertEqual(run(GENERATE, "--file", file.name, *QUICK).stdout, want)
            self.assertEqual(run(GENERATE, *QUICK, text="\ufeffAnd God said").stdout, want)

    def test_turns_of_a_chat_come_from_a_pipe_too(self):
        def prompt_tokens(*options, text=""):
            done = run(GENERATE, *QUICK, "--stats", *options, text=text)
            self.assertEqual(done.returncode, 0, done.stderr)
            return counted(done, "prompt")

        one = prompt_tokens("--chat", "-p", "hello")
        self.assertEqual(prompt_tokens("-cnv", text="hello\n"), one)
        self.assertEqual(prompt_tokens("--chat", text="hello\r\n"), one)
        self.assertEqual(prompt_tokens("-st", "-p", "hello", text="not read\n"), one)
        self.assertGreater(prompt_tokens("--chat", text="hello\nagain\n"), one)
        self.assertGreater(prompt_tokens("--chat", "-p", "hello", text="again\n"), one)
        self.assertGreater(prompt_tokens("--chat", "-sys", "Be brief.", "-p", "hello"), one)
        # Without a template of its own the file is written as Qwen3.5's, which thinks.
        self.assertEqual(prompt_tokens("--chat", "--think", "-p", "hello"), one)
        self.assertNotEqual(prompt_tokens("--chat", "--no-think", "-p", "hello"), one)
        # A value that looks like an option of two letters is a value.
        self.assertEqual(prompt_tokens("--chat", "-p", "-st", "--no-conversation"), prompt_tokens("-p", "-st"))

    def test_a_full_context_ends_no_chat(self):
        options = ["--chat", "--no-think", "-n", 8, "--temp", 0, "-c", 60]
        done = run(GENERATE, *options, text="hello\n" * 4 + "/undo\n/undo\nhello\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"the prompt has \d+ tokens; the context holds 60 .*; this turn is left out")
        room = run(GENERATE, *options, text="hello\n" * 4).stderr.count("left out")
        self.assertEqual(done.stderr.count("left out"), room)
        done = run(GENERATE, "--chat", "--no-think", "--temp", 0, "--ignore-eos", "-c", 60, text="hello\nhello\n/clear\nhello\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("the context of 60 tokens is full (see --ctx-size); /undo or /clear make room"), 2)
        self.assertEqual(done.stderr.count("left out"), 1)

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
            for more in ([], ["--exact"]):
                done = run(GENERATE, *options, *more, "--stats", "--model", folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual("weight images" in done.stderr, not more, done.stderr)
                same = run(GENERATE, *options, *more, "--model", source / "tiny-qwen35-BF16.gguf")
                self.assertEqual(done.stdout, same.stdout)
            Path(folder, "model-00002-of-00002.safetensors").unlink()
            self.fails("-p", "x", "--model", folder, says="model-00002-of-00002.safetensors")



class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, *options):
        self.parent, child = pty.openpty()
        self.program = subprocess.Popen([GENERATE, *map(str, options)], stdin=child, stdout=child, stderr=child, close_fds=True,
                                        start_new_session=True, env=dict(os.environ, TERM="xterm"),
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(child)
        self.seen = ""

    def type(self, data):
        os.write(self.parent, data)

    def read_until(self, marker):
        """What is shown up to the next marker."""
        while marker not in self.seen:
            if not select.select([self.parent], [], [], 120)[0]:
                raise AssertionError(f"no {marker!r} in time; so far: {self.seen[-500:]!r}")
            try:
                self.seen += os.read(self.parent, 4096).decode("utf-8", "replace")
            except OSError:
                raise AssertionError(f"the program has ended before {marker!r}; so far: {self.seen[-500:]!r}") from None
        shown, self.seen = self.seen.split(marker, 1)
        return shown

    def end(self):
        code = self.program.wait(60)
        os.close(self.parent)
        return code


class ChatAtATerminal(unittest.TestCase):
    def test_turns_and_an_empty_line_leaves(self):
        terminal = Terminal(*QUICK)
        terminal.read_until("> ")
        terminal.type(b"Who was Abraham?\n")
        terminal.read_until("> ")
        terminal.type(b"And Isaac?\n")
        terminal.read_until("> ")
        terminal.type(b"\n")
        self.assertEqual(terminal.end(), 0)

    def test_the_first_turn_may_be_given(self):
        terminal = Terminal(*QUICK, "--chat", "-p", "Who was Abraham?")
        terminal.read_until("> Who was Abraham?")
        terminal.read_until("> ")
        terminal.type(b"\x04")
        self.assertEqual(terminal.end(), 0)

    def test_pasted_lines_are_one_turn(self):
        tokens = []
        ways = [b"one\\\ntwo\\\nthree\n", b"one\ntwo\nthree\n"]
        if EDITOR:
            ways.append(b"\x1b[200~one\rtwo\rthree\x1b[201~\n")  # as terminals mark what is pasted
        for typed in ways:
            terminal = Terminal(*QUICK, "--stats", "--chat")
            terminal.read_until("> ")
            terminal.type(typed)
            terminal.read_until("> ")
            terminal.type(b"\x04")
            terminal.read_until("prompt  ")
            tokens.append(int(terminal.read_until(" tokens")))
            self.assertEqual(terminal.end(), 0)
        whole = run(GENERATE, *QUICK, "--stats", "--chat", "-p", "one\ntwo\nthree")
        self.assertEqual(tokens, [counted(whole, "prompt")] * len(ways))

    def test_ctrl_c_ends_the_reply_and_twice_at_the_prompt_the_program(self):
        terminal = Terminal("--chat", "--temp", 0, "--ignore-eos", "-n", -1)
        terminal.read_until("> ")
        terminal.type(b"hello\n")
        terminal.read_until("\n")
        terminal.read_until(" ")  # a reply has begun
        terminal.type(b"\x03")
        terminal.read_until("(interrupted)")
        terminal.read_until("> ")
        if EDITOR:
            terminal.type(b"typed, then not")
            terminal.read_until("then not")  # Ctrl-C drops also what the terminal has not handed on
            terminal.type(b"\x03")
            terminal.read_until("> ")
        terminal.type(b"\x03")
        terminal.read_until("(Ctrl-C again leaves)")
        terminal.read_until("> ")
        terminal.type(b"\x03")
        self.assertEqual(terminal.end(), 0)


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

    def test_the_context_is_the_window(self):
        text = Path(DATA, "tiny-qwen35/golden/heldout.txt")
        by_window = run(PERPLEXITY, "-f", text, "--window", 128, "--windows", 2)
        self.assertEqual(run(PERPLEXITY, "-f", text, "-c", 128, "--chunks", 2, "-b", 50).stdout, by_window.stdout)
        self.assertIn("windows 2 of 128 tokens", by_window.stdout)
        self.assertIn("of 512 tokens", run(PERPLEXITY, "-f", text, "--windows", 1).stdout)
        self.assertIn("of 32 tokens", run(PERPLEXITY, "-f", text, "--windows", 1, "-c", 64, "--window", 32).stdout)
        self.assertIn("windows 1 of 4096 tokens", run(PERPLEXITY, "-f", text, "-c", 0).stdout)
        self.assertRegex(run(PERPLEXITY, "-f", "/dev/null", "-c", 5000).stderr, "warning: .* 5000 .*\n.*one window takes 5000")

    def test_n18_a_byte_order_mark_is_not_text(self):
        text = Path(DATA, "tiny-qwen35/golden/heldout.txt").read_bytes()
        with tempfile.NamedTemporaryFile("wb", suffix=".txt") as file:
            file.write(b"\xef\xbb\xbf" + text)
            file.flush()
            options = ["--windows", 1, "-c", 64]
            self.assertEqual(run(PERPLEXITY, "-f", file.name, *options).stdout,
                             run(PERPLEXITY, "-f", Path(DATA, "tiny-qwen35/golden/heldout.txt"), *options).stdout)

    def test_bad_input(self):
        for code, *options in ((2,), (2, "-f", __file__, "-c", 1), (2, "-f", __file__, "-c", -1), (2, "-f", __file__, "--ids", __file__),
                               (1, "--file", "/no/such/file"), (1, "--ids", __file__), (1, "--file", "/dev/null")):
            done = run(PERPLEXITY, *options)
            self.assertEqual((done.returncode, done.stdout), (code, ""), options)
            self.assertTrue(done.stderr.startswith("perplexity: "), done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
