"""LangChain's package for OpenAI's APIs against a running `cake-master serve` of the demo model.

    python langchain_client.py http://127.0.0.1:8080 MODEL
"""

from checks import ANSWER, ASKED, QUESTION, check, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    age: int = Field(ge=0, le=150)


@tool
def get_unit(is_metric: bool) -> str:
    """The unit of temperatures."""
    return "celsius" if is_metric else "fahrenheit"


def chats(where, model):
    """One by each of OpenAI's APIs for chats."""
    asked = dict(where, model=model, temperature=0, max_tokens=100, stream_usage=True)
    return [ChatOpenAI(**asked, use_responses_api=responses) for responses in (False, True)]


@check
def answers(where, model):
    for chat in chats(where, model):
        answer = chat.invoke(ASKED)
        assert answer.text == ANSWER and answer.response_metadata["model_name"] == model, answer
        used = answer.usage_metadata
        assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"] > used["output_tokens"] > 0


@check
def streams(where, model):
    for chat in chats(where, model):
        chunks = list(chat.stream(ASKED))
        assert "".join(chunk.text for chunk in chunks) == ANSWER and len(chunks) > 5
        whole = sum(chunks[1:], chunks[0])
        assert whole.usage_metadata["output_tokens"] == chat.invoke(ASKED).usage_metadata["output_tokens"]


@check
def asks_many_at_once(where, model):
    answers = chats(where, model)[0].batch([ASKED, QUESTION, ASKED])
    assert [answer.text for answer in answers] == [ANSWER] * 3


@check
def calls_tools(where, model):
    for chat in chats(where, model):
        asked = [HumanMessage(ASKED)]
        call = chat.bind_tools([get_unit], tool_choice="any").invoke(asked)
        assert [one["name"] for one in call.tool_calls] == ["get_unit"], call
        result = get_unit.invoke(call.tool_calls[0])
        assert isinstance(result, ToolMessage) and result.content in ("celsius", "fahrenheit")
        again = chat.bind_tools([get_unit]).invoke([*asked, call, result])
        assert again.text and again.usage_metadata["input_tokens"] > call.usage_metadata["input_tokens"]


@check
def structured_output(where, model):
    for chat in chats(where, model):
        for method in ("json_schema", "function_calling"):
            person = chat.with_structured_output(Person, method=method).invoke("How old is Ann?")
            assert isinstance(person, Person), (method, person)


@check
def other_ways_to_ask(where, model):
    plain = OpenAI(**where, model=model, temperature=0, max_tokens=5)
    assert plain.invoke("Paris is") == "".join(plain.stream("Paris is")) != ""
    # It makes tokens of texts by itself, unless it is told not to.
    vectors = OpenAIEmbeddings(**where, model=model, check_embedding_ctx_length=False)
    found = vectors.embed_documents(["a", "b"])
    assert len(found) == 2 and vectors.embed_query("a") == found[0] != found[1]


run(lambda url: dict(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60), "langchain-openai")
