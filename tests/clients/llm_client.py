"""Simon Willison's `llm`, the program, against a running `cake-master serve` of the demo model.

    python llm_client.py http://127.0.0.1:8080 MODEL
"""

import json
import os
import sys
import tempfile

from checks import ANSWER, ASKED, PERSON, check, run
from click.testing import CliRunner
from llm.cli import cli

TOOL = '''
def get_unit(is_metric: bool) -> str:
    "The unit of temperatures."
    return "celsius" if is_metric else "fahrenheit"
'''


class Program:
    """It with files of its own, in which a server has its place."""

    def __init__(self, url):
        self.home = tempfile.TemporaryDirectory()
        os.environ["LLM_USER_PATH"] = self.home.name
        known = {"model_id": "cake", "model_name": sys.argv[2], "api_base": f"{url}/v1"}
        able = {"supports_tools": True, "supports_schema": True}
        with open(os.path.join(self.home.name, "extra-openai-models.yaml"), "w") as file:
            json.dump([known | able], file)

    def __call__(self, *arguments):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def ask(self, *arguments):
        return self("-m", "cake", "--key", "none", "-o", "temperature", "0", *arguments).rstrip("\n")


@check
def answers(llm, model):
    assert "cake" in llm("models", "list", "-q", "cake")
    assert llm.ask(ASKED) == llm.ask("--no-stream", ASKED) == ANSWER


@check
def keeps_what_was_said(llm, model):
    [said] = json.loads(llm("logs", "--json", "-n", "1"))
    assert (said["model"], said["prompt"], said["response"]) == ("cake", ASKED, ANSWER), said
    assert said["input_tokens"] > 0 and said["output_tokens"] > 0
    llm.ask("--continue", "And of Italy?")
    [more] = json.loads(llm("logs", "--json", "-n", "1"))
    assert more["conversation_id"] == said["conversation_id"] and more["input_tokens"] > said["input_tokens"]


@check
def held_to_a_schema(llm, model):
    answer = json.loads(llm.ask("--schema", json.dumps(PERSON), "How old is Ann?"))
    assert list(answer) == ["age"] and 0 <= answer["age"] <= 150, answer


@check
def offers_tools(llm, model):
    # It has no way to ask for a call, so the model says what it likes.
    assert llm.ask("--functions", TOOL, ASKED)
    [said] = json.loads(llm("logs", "--json", "-n", "1"))
    assert [tool["name"] for tool in said["tools"]] == ["get_unit"], said


run(Program, "llm")
