# Renders chat templates for engine/text/chat/chat_template.c: one JSON object a line in, one a line
# out.
#
# The environment is that of apply_chat_template in transformers, without what differs from run to
# run: the clock, random numbers and addresses of objects. The first line is {"template",
# "tool_template", "variables"}, answered by {"ok": true}; then each {"messages", "tools",
# "add_generation_prompt"} by {"text"}. Whatever goes wrong is answered by {"error"}. The loop is in
# engine/ext/script_loop.py. The text is an argument within single quotes: it has none itself.
# SPDX-License-Identifier: Apache-2.0
import json
import re

MEMORY = 1 << 30
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{4,}")
REASONING = ("reasoning_content", "thinking", "reasoning")


def environment():
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the model said; here it is only passed through."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_pass_through")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _pass_through(self, caller):
            return caller()

    class Dict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):
            for name in dict(*args[1:], **kwargs):
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(*args, **kwargs)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"the name {name!r} in a namespace")

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(_):
        raise jinja2.exceptions.TemplateError(
            "strftime_now reads the clock: set the date by the variables of the template")

    def is_data(value):
        if isinstance(value, dict):
            return all(is_data(x) for item in value.items() for x in item)
        if isinstance(value, (list, tuple)):
            return all(is_data(x) for x in value)
        return value is None or isinstance(value, (str, int, float, jinja2.Undefined))

    def finalize(value):
        if not is_data(value):
            raise jinja2.exceptions.TemplateError(
                f"it would print a {type(value).__name__}, which is no data; a filter such as "
                "map or select needs |list or |join after it")
        return value

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, finalize=finalize,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    del env.filters["random"], env.globals["lipsum"]
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, dict=Dict(),
                       namespace=Namespace)
    return env


def alias(message):
    """Reasoning is known by several names; templates read the first two."""
    said = next((message[key] for key in REASONING if message.get(key) is not None), None)
    if said is None:
        return message
    return {"thinking": said, **message, "reasoning_content": said}


def check(messages):
    if not isinstance(messages, list) or not messages:
        raise ValueError("the messages are not a list with at least one")
    for message in messages:
        if not isinstance(message, dict):
            raise ValueError("a message is not an object")


class Renderer:
    def open(self, template, tool_template, variables):
        env = environment()
        self.template = env.from_string(template)
        self.tool_template = env.from_string(tool_template) if tool_template else self.template
        self.variables = variables
        self.given = template + (tool_template or "") + json.dumps(variables)
        return {"ok": True}

    def render(self, messages, tools, add_generation_prompt):
        check(messages)
        template = self.template if tools is None else self.tool_template
        text = template.render(
            messages=[alias(message) for message in messages], tools=tools, documents=None,
            add_generation_prompt=add_generation_prompt, **self.variables)
        self.check_addresses(text, json.dumps([messages, tools]))
        return {"text": text}

    def check_addresses(self, text, given):
        """What was made into text on the way (by ~, string or format) never came to finalize."""
        for address in ADDRESS.findall(text):
            if address not in given and address not in self.given:
                raise ValueError(f"the text has the address of an object ({address}), which "
                                 "differs from run to run")


def describe(error):
    if isinstance(error, ImportError):
        return "python3 has no jinja2: install python3-jinja2"
    line = getattr(error, "lineno", None)
    place = f" in line {line}" if line else ""
    return f"{type(error).__name__}{place}: {error}"


renderer = Renderer()
serve(MEMORY, renderer.open, renderer.render, describe)
