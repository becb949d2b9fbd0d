"""OpenAI's Agents SDK, whose models answer by `/v1/responses`, against a running `cake-master serve` of the demo model.

    python agents_client.py http://127.0.0.1:8080 MODEL
"""

import asyncio

import agents
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool
from checks import ASKED, check, run
from openai import AsyncOpenAI

# One for all: connections belong to the loop that opened them.
LOOP = asyncio.Runner()
# As long as the model likes: of an answer that was cut off the SDK makes an error.
SHORT = ModelSettings(temperature=0)


def model_of(client, model):
    return OpenAIResponsesModel(model=model, openai_client=client)


@check
def answers(client, model):
    agent = Agent(name="Short", instructions="Be brief.", model=model_of(client, model), model_settings=SHORT)
    first = LOOP.run(Runner.run(agent, ASKED))
    assert first.final_output and first.raw_responses[0].usage.output_tokens > 0
    # It goes on from what it was told before, by sending all of it, or from what is stored.
    again = first.to_input_list() + [{"role": "user", "content": "And of Italy?"}]
    sent = LOOP.run(Runner.run(agent, again))
    stored = LOOP.run(Runner.run(agent, "And of Italy?", previous_response_id=first.last_response_id))
    assert sent.final_output == stored.final_output


@check
def streams(client, model):
    agent = Agent(name="Short", model=model_of(client, model), model_settings=SHORT)

    async def texts():
        result = Runner.run_streamed(agent, ASKED)
        deltas = []
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas.append(event.data.delta)
        return "".join(deltas), result.final_output

    streamed, final = LOOP.run(texts())
    assert streamed == final == LOOP.run(Runner.run(agent, ASKED)).final_output


@check
def calls_tools(client, model):
    asked = []

    @function_tool
    def get_unit(unit: bool) -> str:
        """The unit of temperatures."""
        asked.append(unit)
        return "celsius"

    settings = ModelSettings(tool_choice="required", temperature=0)
    agent = Agent(name="Tools", model=model_of(client, model), model_settings=settings, tools=[get_unit])
    # The first turn has to call; the next one says what it likes, as the SDK asks for no second call.
    result = LOOP.run(Runner.run(agent, ASKED))
    assert asked and [type(one) for one in asked] == [bool] * len(asked)
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and kinds[-1] == "message_output_item", kinds


agents.set_tracing_disabled(True)
run(lambda url: AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60), "openai-agents")
