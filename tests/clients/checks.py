"""What the scripts of clients share: checks of a running `cake-master serve` of the demo model.

Every check is an assertion; the last line says how many there were.
"""

import sys
from importlib import metadata

CHECKS = []
ASKED = "What is the capital of France?"
QUESTION = [{"role": "user", "content": ASKED}]
# What the demo model says to it when it takes the likeliest token each time.
ANSWER = "The capital of France is Paris."
# What a tool is told, which a small model that is held to it can write.
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
# A tool as OpenAI's chats and Ollama's have it.
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": PLACE},
}

# Of answers that are held to a schema, which a small model writes whole.
PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["age"],
    "additionalProperties": False,
}


def check(function):
    CHECKS.append(function)
    return function


def run(connect, package):
    """Makes all checks with the client, of the package of this name, that `connect` gives for a URL."""
    url, model = sys.argv[1:]
    client = connect(url)
    for function in CHECKS:
        function(client, model)
        print(f"{function.__name__}: ok", flush=True)
    print(f"{len(CHECKS)} checks passed with {package} {metadata.version(package)}")
