"""LiteLLM, which asks by any API that there is, against a running `cake-master serve` of the demo model.

    python litellm_client.py http://127.0.0.1:8080 MODEL
"""

import json
import os

# Otherwise it asks elsewhere what models cost.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from checks import ANSWER, ASKED, PERSON, QUESTION, TOOL, check, run

litellm.suppress_debug_info = True
GREEDY = dict(messages=QUESTION, temperature=0, max_tokens=40, num_retries=0)


class Server:
    """Where it is, for each of the providers that it can be to LiteLLM."""

    def __init__(self, url):
        self.openai = dict(api_base=f"{url}/v1", api_key="none")
        self.anthropic = dict(api_base=url, api_key="none")
        self.ollama = dict(api_base=url)


@check
def models(server, model):
    found = litellm.get_valid_models(check_provider_endpoint=True, custom_llm_provider="openai", **server.openai)
    assert found == [model], found


@check
def answers_by_every_api(server, model):
    ways = {"openai": "openai", "hosted_vllm": "openai", "anthropic": "anthropic", "ollama_chat": "ollama"}
    for provider, where in ways.items():
        asked = dict(model=f"{provider}/{model}", **getattr(server, where), **GREEDY)
        whole = litellm.completion(**asked)
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop"), (provider, whole)
        assert whole.usage.completion_tokens > 0 and whole.usage.prompt_tokens > 0
        chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
        streamed = litellm.stream_chunk_builder(chunks)
        assert streamed.choices[0].message.content == ANSWER, (provider, streamed)
        assert streamed.usage.completion_tokens == whole.usage.completion_tokens, (provider, streamed)


@check
def calls_tools(server, model):
    for provider, where in {"openai": "openai", "anthropic": "anthropic"}.items():
        asked = dict(GREEDY, max_tokens=200, tools=[TOOL], tool_choice="required")
        answer = litellm.completion(model=f"{provider}/{model}", **getattr(server, where), **asked)
        assert answer.choices[0].finish_reason == "tool_calls", (provider, answer)
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and call.id
        assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit")
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        turns = QUESTION + [answer.choices[0].message, result]
        again = dict(GREEDY, messages=turns, tools=[TOOL])
        again = litellm.completion(model=f"{provider}/{model}", **getattr(server, where), **again)
        assert again.choices[0].message.content and again.usage.prompt_tokens > answer.usage.prompt_tokens


@check
def held_to_a_schema(server, model):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    asked = dict(GREEDY, model=f"openai/{model}", response_format=form)
    answer = litellm.completion(**asked, **server.openai)
    assert 0 <= json.loads(answer.choices[0].message.content)["age"] <= 150, answer


@check
def other_ways_to_ask(server, model):
    answer = litellm.responses(model=f"openai/{model}", input=ASKED, temperature=0, **server.openai)
    assert answer.output[0].content[0].text == ANSWER, answer
    plain = dict(prompt="Paris is", max_tokens=5, temperature=0)
    plain = litellm.text_completion(model=f"text-completion-openai/{model}", **plain, **server.openai)
    assert plain.choices[0].text and plain.usage.completion_tokens == 5, plain
    found = litellm.embedding(model=f"openai/{model}", input=["a", "b"], **server.openai)
    assert len(found.data) == 2 and len(found.data[0]["embedding"]) == len(found.data[1]["embedding"]) > 0


@check
def errors(server, model):
    def refused(kind, **changed):
        try:
            litellm.completion(**{**GREEDY, "model": f"openai/{model}", **server.openai, **changed})
        except kind:
            return
        raise AssertionError(f"{changed} was not refused")

    refused(litellm.NotFoundError, model="openai/other")
    refused(litellm.BadRequestError, temperature=-1)
    refused(litellm.ContextWindowExceededError, messages=[{"role": "user", "content": "word " * 20_000}])


run(Server, "litellm")
