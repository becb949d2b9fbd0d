// OpenAI's own client for JavaScript against a running `cake-master serve` of the demo model.
//
//     node openai_client.mjs http://127.0.0.1:8080 MODEL
import assert from "node:assert/strict";

import OpenAI from "openai";
import { ANSWER, ASKED, PLACE, QUESTION, run } from "./checks.mjs";

const GREEDY = { messages: QUESTION, temperature: 0, max_tokens: 100 };
// What this program calls itself: no other one does.
const MARK = `openai-client-${process.pid}`;
const TOOL = { type: "function", function: { name: "get_weather", parameters: PLACE } };

async function models(client, model) {
  const found = [];
  for await (const one of client.models.list()) found.push(one.id);
  assert.deepEqual(found, [model]);
  assert.equal((await client.models.retrieve(model)).owned_by, "cake");
}

async function chat(client, model) {
  const answer = await client.chat.completions.create({ ...GREEDY, model });
  assert.equal(answer.choices[0].message.content, ANSWER);
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
  const stream = client.chat.completions.stream({ ...GREEDY, model, stream_options: { include_usage: true } });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  const last = await stream.finalChatCompletion();
  assert.equal(text, ANSWER);
  assert.equal(last.choices[0].message.content, ANSWER);
  assert.equal((await stream.totalUsage()).completion_tokens, completion_tokens);
}

async function goesAway(client, model) {
  // Answers that fill the context, unless somebody ends them.
  const asked = { ...GREEDY, model, max_tokens: 100_000, ignore_eos: true, n: 8, stream: true };
  const stream = await client.chat.completions.create(asked);
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    assert.ok(await isAnswered(client));
    break; // The client ends the request.
  }
  assert.ok(stream.controller.signal.aborted);
  for (const end = Date.now() + 60_000; await isAnswered(client); ) {
    assert.ok(Date.now() < end, "the server computes what nobody reads");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// Whether the server works for this program, whoever else asks it.
async function isAnswered(client) {
  const { requests } = await (await fetch(new URL("/api/requests", client.baseURL))).json();
  return requests.some((request) => request.client === MARK);
}

async function tools(client, model) {
  const told = [];
  const weather = (place) => (told.push(place), "sunny");
  const tool = { type: "function", function: { ...TOOL.function, function: weather, parse: JSON.parse } };
  const runner = client.chat.completions.runTools({ ...GREEDY, model, tools: [tool], tool_choice: "required" }, { maxChatCompletions: 1 });
  await runner.done();
  assert.ok(["celsius", "fahrenheit"].includes(told[0].unit), JSON.stringify(told));
  const called = runner.messages.find((message) => message.tool_calls);
  const result = { role: "tool", tool_call_id: called.tool_calls[0].id, content: "sunny" };
  const messages = [...QUESTION, called, result];
  const again = await client.chat.completions.create({ ...GREEDY, model, messages, tools: [TOOL] });
  assert.ok(again.choices[0].message.content);
}

async function heldToASchema(client, model) {
  const json_schema = { name: "place", strict: true, schema: { ...PLACE, additionalProperties: false } };
  const response_format = { type: "json_schema", json_schema };
  const answer = await client.chat.completions.parse({ ...GREEDY, model, response_format });
  assert.deepEqual(Object.keys(answer.choices[0].message.parsed), ["city", "unit"]);
}

async function responses(client, model) {
  const asked = { model, input: ASKED, temperature: 0 };
  const whole = await client.responses.create(asked);
  assert.equal(whole.output_text, ANSWER);
  const stream = client.responses.stream(asked);
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert.equal(text, ANSWER);
  assert.equal((await stream.finalResponse()).output_text, ANSWER);
  const next = await client.responses.create({ ...asked, input: "And of Italy?", previous_response_id: whole.id });
  assert.ok(next.usage.input_tokens > whole.usage.input_tokens);
}

async function others(client, model) {
  const plain = await client.completions.create({ model, prompt: "Paris is", temperature: 0, max_tokens: 5 });
  assert.equal(plain.usage.completion_tokens, 5);
  // It asks for numbers as bytes in base64, and reads these.
  const [one] = (await client.embeddings.create({ model, input: ["a"] })).data;
  assert.ok(one.embedding.length > 0 && one.embedding.every(Number.isFinite));
}

async function errors(client, model) {
  const refused = (kind, field, changed) =>
    assert.rejects(client.chat.completions.create({ ...GREEDY, model, ...changed }), (error) => {
      assert.ok(error instanceof kind, String(error));
      assert.deepEqual({ ...field }, Object.fromEntries(Object.keys(field).map((name) => [name, error[name]])));
      return true;
    });
  await refused(OpenAI.NotFoundError, { code: "model_not_found", param: "model" }, { model: "other" });
  await refused(OpenAI.BadRequestError, { param: "temperature" }, { temperature: -1 });
  const messages = [{ role: "user", content: "word ".repeat(20_000) }];
  await refused(OpenAI.BadRequestError, { code: "context_length_exceeded" }, { messages });
  await refused(OpenAI.BadRequestError, { code: "context_length_exceeded" }, { messages, stream: true });
}

const connect = (url) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000, defaultHeaders: { "User-Agent": MARK } });
await run({ models, chat, goesAway, tools, heldToASchema, responses, others, errors }, connect, "openai");
