"""Instructor, which makes values of a type of answers, against a running `cake-master serve` of the demo model.

    python instructor_client.py http://127.0.0.1:8080 MODEL
"""

import instructor
import openai
from checks import check, run
from instructor import Mode
from pydantic import BaseModel, Field

QUESTION = [{"role": "user", "content": "How old is Ann?"}]
GREEDY = dict(response_model=None, messages=QUESTION, temperature=0, max_retries=0)


class Person(BaseModel):
    """A person."""

    age: int = Field(ge=0, le=150)


class People(BaseModel):
    """Some of them."""

    people: list[Person] = Field(min_length=1, max_length=2)


def values(client, model, mode):
    return instructor.from_openai(client, mode=mode), dict(GREEDY, model=model, response_model=Person)


@check
def values_of_a_type(client, model):
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS):
        ask, asked = values(client, model, mode)
        assert isinstance(ask.create(**asked), Person), mode


@check
def values_while_they_come(client, model):
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        ask, asked = values(client, model, mode)
        parts = list(ask.create_partial(**asked))
        assert parts[-1].age == ask.create(**asked).age is not None, (mode, parts)


@check
def lists_of_values(client, model):
    ask, asked = values(client, model, Mode.JSON_SCHEMA)
    found = ask.create(**asked | {"response_model": People})
    assert 1 <= len(found.people) <= 2, found


@check
def answers_beside_values(client, model):
    ask, asked = values(client, model, Mode.TOOLS)
    person, answer = ask.create_with_completion(**asked)
    assert answer.usage.completion_tokens > 0 and str(person.age) in str(answer.choices[0].message.tool_calls)


run(lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60), "instructor")
