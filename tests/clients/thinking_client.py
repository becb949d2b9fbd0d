"""The official clients of three APIs, for Python, ask a running `cake-master serve` whose model thinks before it answers.

    python thinking_client.py http://127.0.0.1:8080 MODEL
"""

import anthropic
import ollama
import openai
from checks import check, run

ASKED = [{"role": "user", "content": "Tell me a story about an owl"}]
MOST = 40
# What all of them are asked for takes the likeliest token each time, to the last one.
GREEDY = {"temperature": 0, "ignore_eos": True}


class Clients:
    def __init__(self, url):
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        self.ollama = ollama.Client(host=url)


def chat(clients, model, **more):
    asked = dict(model=model, messages=ASKED, max_tokens=MOST, extra_body=GREEDY)
    return clients.openai.chat.completions.create(**asked, **more)


def thought_and_text(clients, model):
    message = chat(clients, model).choices[0].message
    thought, text = message.reasoning_content, message.content
    assert thought and text and thought not in text, message
    return thought, text


@check
def chats(clients, model):
    thought, text = thought_and_text(clients, model)
    pieces = [chunk.choices[0].delta for chunk in chat(clients, model, stream=True) if chunk.choices]
    assert "".join(getattr(piece, "reasoning_content", None) or "" for piece in pieces) == thought
    assert "".join(piece.content or "" for piece in pieces) == text
    silent = chat(clients, model, reasoning_effort="none").choices[0].message
    assert silent.content and not getattr(silent, "reasoning_content", None), silent


@check
def responses(clients, model):
    asked = dict(model=model, input=ASKED, max_output_tokens=MOST, extra_body=GREEDY)
    thought, text = thought_and_text(clients, model)
    answer = clients.openai.responses.create(**asked)
    reasoning, message = answer.output
    assert (reasoning.type, message.type) == ("reasoning", "message"), answer.output
    assert reasoning.content[0].text == thought and answer.output_text == text
    events = list(clients.openai.responses.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == thought
    silent = clients.openai.responses.create(**asked, reasoning={"effort": "none"})
    assert [item.type for item in silent.output] == ["message"], silent.output


@check
def messages(clients, model):
    thought, text = thought_and_text(clients, model)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    asked = dict(model=model, messages=ASKED, max_tokens=MOST, extra_body=GREEDY)
    said = clients.anthropic.messages.create(**asked, thinking=thinking).content
    assert [block.type for block in said] == ["thinking", "text"], said
    assert (said[0].thinking, said[1].text) == (thought, text)
    with clients.anthropic.messages.stream(**asked, thinking=thinking) as stream:
        pieces = [event.thinking for event in stream if event.type == "thinking"]
        assert len(pieces) > 1 and "".join(pieces) == thought
        assert stream.get_final_message().content[1].text == text
    assert [block.type for block in clients.anthropic.messages.create(**asked).content] == ["text"]


@check
def ollama_chats(clients, model):
    asked = dict(model=model, messages=ASKED, options={"temperature": 0, "num_predict": MOST})
    message = clients.ollama.chat(**asked, think=True).message
    thought, text = thought_and_text(clients, model)
    # Here it may end where it would.
    assert message.thinking == thought and message.content and text.startswith(message.content), message
    pieces = [part.message for part in clients.ollama.chat(**asked, think=True, stream=True)]
    assert "".join(piece.thinking or "" for piece in pieces) == thought
    assert not clients.ollama.chat(**asked, think=False).message.thinking
    assert "thinking" in clients.ollama.show(model).capabilities


run(Clients, "openai")
