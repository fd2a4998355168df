"""Chat templates: what the library renders against what Python's jinja2 renders, over generated conversations.

    check_chat.py RENDER_CHATS TEMPLATE [--self-test]

TEMPLATE is that of Qwen3.5-4B. The other templates of the family differ from it in a few statements; they are made from it here.
"""
import json
import random
import subprocess
import sys
from pathlib import Path

try:
    import jinja2
    import jinja2.sandbox
except ImportError:
    print("jinja2 is not installed (Debian: python3-jinja2); nothing was compared")
    sys.exit(77)


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def compiled(text):
    """As transformers compiles them."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(text)


def replaced(text, *pairs):
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


ON = """    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
"""
OFF = """    {%- if enable_thinking is defined and enable_thinking is true %}
        {{- '<think>\\n' }}
    {%- else %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
"""
KEEPS = "loop.index0 > ns.last_query_index"
SYSTEM = """    {%- if messages[0].role == 'system' %}
        {%- set content = render_content(messages[0].content, false, true)|trim %}
        {{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
"""
SPLIT = """        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
"""
EFFORT = """{%- set reasoning_instructions = '' %}
{%- if enable_thinking is undefined or enable_thinking is true %}
    {%- set resolved_reasoning_effort = reasoning_effort|default('xhigh') %}
    {%- if resolved_reasoning_effort not in ('xhigh', 'medium', 'low') %}
        {{- raise_exception('Unexpected reasoning effort ' ~ reasoning_effort ~ '. Supported types are xhigh (default), medium, and low.') }}
    {%- endif %}
    {%- if resolved_reasoning_effort == 'xhigh' %}
        {%- set reasoning_instructions = 'Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.' %}
    {%- elif resolved_reasoning_effort == 'low' %}
        {%- set reasoning_instructions = 'Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without unnecessary elaboration.' %}
    {%- endif %}
{%- endif %}
{%- if tools and"""
EFFORT_SYSTEM = """    {%- if messages[0].role == 'system' %}
        {%- set content = render_content(messages[0].content, false, true)|trim %}
        {%- if content %}
            {{- '<|im_start|>system\\n' + (reasoning_instructions + '\\n\\n' if reasoning_instructions else '')  + content + '<|im_end|>\\n' }}
        {%- elif reasoning_instructions %}
            {{- '<|im_start|>system\\n' + reasoning_instructions + '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif reasoning_instructions %}
        {{- '<|im_start|>system\\n' + reasoning_instructions + '<|im_end|>\\n' }}
    {%- endif %}
"""
MERGED = """{%- set num_sys = 0 %}
{%- set merged_system = '' %}
{%- if messages[0].role == 'system' or messages[0].role == 'developer' %}
    {%- set first = render_content(messages[0].content, false, true)|trim %}
    {%- if messages|length > 1 and (messages[1].role == 'system' or messages[1].role == 'developer') %}
        {%- set second = render_content(messages[1].content, false, true)|trim %}
        {%- set merged_system = first + '\\n' + second %}
        {%- set num_sys = 2 %}
    {%- else %}
        {%- set merged_system = first %}
        {%- set num_sys = 1 %}
    {%- endif %}
{%- endif %}
{%- if tools and"""
MERGED_SYSTEM = """    {%- if merged_system %}
        {{- '<|im_start|>system\\n' + merged_system + '<|im_end|>\\n' }}
    {%- endif %}
"""
NO_QUESTION = """{%- if ns.multi_step_tool %}
    {{- raise_exception('No user query found in messages.') }}
{%- endif %}
"""
LOOP = """    {%- set content = render_content(message.content, true)|trim %}
    {%- if message.role == "system" %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
    {%- elif message.role == "user" %}
"""
MERGED_LOOP = """    {%- if loop.index0 >= num_sys and message.role != "system" and message.role != "developer" %}
    {%- set content = render_content(message.content, true)|trim %}
    {%- if message.role == "user" %}
"""
END = """    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
"""
MERGED_END = """    {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
"""


def family(text):
    """Name -> template, from that of Qwen3.5-4B."""
    kept = "(preserve_thinking is defined and preserve_thinking is true) or (" + KEEPS + ")"
    newer = replaced(text, (KEEPS, kept))
    return {
        "Qwen3.5": text,
        "Qwen3.5, small": replaced(text, (ON, OFF)),
        "Qwen3.5, other tools": replaced(text, ("tool_call.arguments is defined", "tool_call.arguments is mapping")) + "\n{#- fixed -#}",
        "Qwen3.6": newer,
        "Qwen3.6, joined": replaced(newer, ("{%- if tools and", MERGED), (SYSTEM, MERGED_SYSTEM), (NO_QUESTION, ""), (LOOP, MERGED_LOOP),
                                    (END, MERGED_END)),
        "Qwen3.8": replaced(text, ("{%- if tools and", EFFORT), (SYSTEM, EFFORT_SYSTEM), (SPLIT, "        {%- endif %}\n"),
                            (KEEPS, "preserve_thinking is undefined or preserve_thinking is true or " + KEEPS)),
    }


def strange(text):
    """Templates that are of another shape."""
    return [
        "", "{{ messages }}", text.replace("|trim", ""), text.replace("<think>\\n' }}", "<think>' }}"), "Hello\n" + text,
        text + "Bye", text.replace("{%- else %}\n        {{- '<think>", "{%- else %}\n    {{- 'x' }}    {{- '<think>"),
        text.replace("{%- for message in messages %}", "{%- for message in messages %}\n    {{- '!' }}"),
        text.replace("{{- content }}", "{{- content|upper }}", 1), text.replace("{%- if not messages", "{% if not messages"),
        text[:len(text) // 2], "{%" * 1000, "{%- if tools and %}" * 50, "{{- '" + "\\" * 99,
    ]


WORDS = ["hello", "", " ", "\n", "\n\n", "\t", "world", "a\nb", "\u00a0", "\u2003", "\u200b", "\u0085", "\x1c", "\u3000", "caf\u00e9", "e\u0301",
         "\U0001f600", "{{ x }}", "{% if %}", "'", '"', "\\n", "<tool_response>", "</tool_response>", "think", "<", ">", "user", "0 1"]
TAGS = ["<think>", "</think>", "<think>\n", "\n</think>\n\n", "</think>"]
SPECIAL = ["<|im_end|>", "<|im_start|>system\n", "<|endoftext|>"]


def some_text(pick, tags):
    return "".join(pick.choice(WORDS + tags) for _ in range(pick.randrange(6)))


def conversation(pick):
    turns = []
    if pick.random() < 0.4:
        turns.append({"role": "system", "content": some_text(pick, [])})
    if pick.random() < 0.1:
        turns.append({"role": pick.choice(["system", "developer"]), "content": some_text(pick, [])})
    for _ in range(pick.randrange(1 if turns else 0, 7)):
        role = pick.choice(["user", "user", "assistant", "assistant", "assistant", "system" if pick.random() < 0.1 else "user"])
        content = some_text(pick, TAGS + (SPECIAL if pick.random() < 0.1 else []))
        if role == "user" and pick.random() < 0.15:
            content = pick.choice(["", " ", "\n"]) + "<tool_response>" + content + "</tool_response>\n"
        turns.append({"role": role, "content": content})
        if role == "assistant" and pick.random() < 0.2:
            turns[-1]["reasoning"] = some_text(pick, TAGS)
    return turns


def cases(template, rounds, seed):
    pick = random.Random(seed)
    for _ in range(rounds):
        case = {"template": template, "turns": conversation(pick), "prompt": pick.random() < 0.7}
        for key in ("thinking", "keep_reasoning"):
            if pick.random() < 0.6:
                case[key] = pick.random() < 0.5
        if pick.random() < 0.3:
            case["effort"] = pick.choice(["low", "medium", "xhigh", "wild" if pick.random() < 0.2 else "low"])
        yield case


def expected(template, case):
    """The text, or None where the template refuses."""
    messages = []
    for turn in case["turns"]:
        message = {"role": turn["role"], "content": turn["content"]}
        if "reasoning" in turn:
            message["reasoning_content"] = turn["reasoning"]
        messages.append(message)
    settings = {"messages": messages, "add_generation_prompt": case["prompt"]}
    for name, key in (("enable_thinking", "thinking"), ("preserve_thinking", "keep_reasoning"), ("reasoning_effort", "effort")):
        if key in case:
            settings[name] = case[key]
    try:
        return template.render(**settings)
    except Refused:
        return None


def run(program, inputs):
    text = "".join(json.dumps(case) + "\n" for case in inputs)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True, encoding="utf-8")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def check(program, templates, rounds):
    faults, rendered, refused = [], 0, 0
    for number, (name, text) in enumerate(templates.items()):
        template, inputs = compiled(text), list(cases(text, rounds, number))
        for case, got in zip(inputs, run(program, inputs), strict=True):
            want = expected(template, case)
            shown = {key: value for key, value in case.items() if key != "template"}
            if not got["known"]:
                faults.append(f"{name}: not known")
                break
            if got.get("text") != want:
                faults.append(f"{name}: {shown}\n  want {want!r}\n  got  {got.get('text', got.get('error'))!r}")
            elif want is None:
                refused += 1
            else:
                rendered += 1
                contents = [part for turn in case["turns"] for part in (turn["content"], turn.get("reasoning", ""))]
                plain = not any(tag in part for part in contents for tag in ("<think>", "</think>", "<|im_"))
                # Text with a special token's spelling gets other ids: there the tokens must be the template's own.
                if not got["decoded"] or (plain and not got["same"]):
                    faults.append(f"{name}: ids of {shown} are not those of its text")
                if plain and got["special"] != want.count("<|im_start|>") + want.count("<|im_end|>"):
                    faults.append(f"{name}: {got['special']} special tokens in {shown}")
    return faults, rendered, refused


def main():
    program, text = sys.argv[1], Path(sys.argv[2]).read_text(encoding="utf-8")
    templates = family(text)
    if "--self-test" in sys.argv:
        # A reference that differs in one point from what is rendered must be noticed.
        for name, old, new in (("Qwen3.5", "|trim", "|trim('x')"), ("Qwen3.6", "[-1].lstrip", "[0].lstrip"), ("Qwen3.8", "set to low", "set to lower")):
            wrong = compiled(templates[name].replace(old, new))
            inputs = list(cases(templates[name], 100, 1))
            assert any(got.get("text") != expected(wrong, case) for case, got in zip(inputs, run(program, inputs), strict=True)), name
        print("planted differences are found")
        return 0
    faults, rendered, refused = check(program, templates, 300)
    for got, odd in zip(run(program, [{"template": t, "turns": [], "prompt": True} for t in strange(text)]), strange(text), strict=True):
        if got["known"]:
            faults.append(f"a template of another shape is taken for a known one: {odd[:200]!r}")
    print("\n".join(faults[:10]))
    print(f"{len(templates)} templates: {rendered} conversations rendered, {refused} refused, {len(faults)} faults")
    return 1 if faults or rendered < 1000 or refused < 50 else 0


sys.exit(main())
