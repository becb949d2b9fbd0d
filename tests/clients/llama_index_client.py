"""LlamaIndex's class for servers like OpenAI's against a running `cake-master serve` of the demo model.

    python llama_index_client.py http://127.0.0.1:8080 MODEL
"""

from checks import ANSWER, ASKED, check, run
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

QUESTION = [ChatMessage(role="user", content=ASKED)]


class Person(BaseModel):
    """A person."""

    age: int = Field(ge=0, le=150)


def get_unit(is_metric: bool) -> str:
    """The unit of temperatures."""
    return "celsius" if is_metric else "fahrenheit"


def llm(where, model, **more):
    return OpenAILike(**{**where, "model": model, "temperature": 0, "max_tokens": 100, "is_chat_model": True, **more})


@check
def answers(where, model):
    chat = llm(where, model)
    answer = chat.chat(QUESTION)
    assert (answer.message.role.value, answer.message.content) == ("assistant", ANSWER), answer
    assert answer.raw.usage.completion_tokens > 0
    assert chat.complete(ASKED).text == ANSWER


@check
def streams(where, model):
    parts = list(llm(where, model).stream_chat(QUESTION))
    assert "".join(part.delta for part in parts) == parts[-1].message.content == ANSWER and len(parts) > 5


@check
def calls_tools(where, model):
    tool = FunctionTool.from_defaults(get_unit)
    chat = llm(where, model, is_function_calling_model=True)
    answer = chat.chat_with_tools([tool], chat_history=QUESTION, tool_required=True)
    [call] = chat.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_unit" and isinstance(call.tool_kwargs["is_metric"], bool), call
    result = ChatMessage(role="tool", content="celsius", additional_kwargs={"tool_call_id": call.tool_id})
    again = chat.chat_with_tools([tool], chat_history=[*QUESTION, answer.message, result])
    assert again.message.content and again.raw.usage.prompt_tokens > answer.raw.usage.prompt_tokens


@check
def structured_output(where, model):
    asked = PromptTemplate("How old is {name}?")
    # By a call, and by a schema.
    for way in (dict(is_function_calling_model=True), dict(should_use_structured_outputs=True)):
        person = llm(where, model, **way).structured_predict(Person, asked, name="Ann")
        assert isinstance(person, Person), way


@check
def plain_completions(where, model):
    plain = llm(where, model, is_chat_model=False, max_tokens=5)
    whole = plain.complete("Paris is").text
    assert whole and "".join(part.delta for part in plain.stream_complete("Paris is")) == whole


run(
    lambda url: dict(api_base=f"{url}/v1", api_key="none", max_retries=0, timeout=60, context_window=1024),
    "llama-index-llms-openai-like",
)
