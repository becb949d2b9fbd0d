// Vercel's AI SDK, by its provider for servers like OpenAI's, which asks for chats, and by that for OpenAI, which asks for
// responses, against a running `cake-master serve` of the demo model.
//
//     node ai_client.mjs http://127.0.0.1:8080 MODEL
import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";
import { ANSWER, ASKED, run } from "./checks.mjs";

const GREEDY = { prompt: ASKED, temperature: 0, maxOutputTokens: 100, maxRetries: 0 };
const person = z.object({ age: z.number().int().min(0).max(150) });
const unit = tool({
  description: "The unit of temperatures.",
  inputSchema: z.object({ isMetric: z.boolean() }),
  execute: async ({ isMetric }) => (isMetric ? "celsius" : "fahrenheit"),
});

async function answers(provider, name) {
  const { text, finishReason, usage, response } = await generateText({ ...GREEDY, model: provider(name) });
  assert.deepEqual([text, finishReason, response.modelId], [ANSWER, "stop", name]);
  assert.ok(usage.inputTokens > 0 && usage.totalTokens === usage.inputTokens + usage.outputTokens);
}

async function streams(provider, name) {
  const result = streamText({ ...GREEDY, model: provider(name) });
  const parts = [];
  for await (const part of result.textStream) parts.push(part);
  assert.equal(parts.join(""), ANSWER);
  assert.ok(parts.length > 5 && (await result.usage).outputTokens > 5);
  assert.equal(await result.finishReason, "stop");
}

async function callsTools(provider, name) {
  // The first step has to call; the next one says what it likes.
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
  const asked = { ...GREEDY, model: provider(name), tools: { unit }, prepareStep, stopWhen: isStepCount(2) };
  const { steps } = await generateText(asked);
  const [called, said] = steps;
  assert.deepEqual([called.finishReason, called.toolCalls[0].toolName], ["tool-calls", "unit"]);
  assert.ok(["celsius", "fahrenheit"].includes(called.toolResults[0].output));
  assert.ok(said.text && said.usage.inputTokens > called.usage.inputTokens);
  const streamed = streamText({ ...asked, stopWhen: isStepCount(1) });
  assert.equal(typeof (await streamed.toolCalls)[0].input.isMetric, "boolean");
}

async function structuredOutput(provider, name) {
  const asked = { ...GREEDY, model: provider(name), prompt: "How old is Ann?", output: Output.object({ schema: person }) };
  const { output } = await generateText(asked);
  assert.ok(person.safeParse(output).success, JSON.stringify(output));
  const streamed = streamText(asked);
  let last;
  for await (const part of streamed.partialOutputStream) last = part;
  assert.deepEqual(last, output);
}

async function embeds(provider, name) {
  const { embeddings } = await embedMany({ model: provider.embeddingModel(name), values: ["a", "b"] });
  assert.ok(embeddings.length === 2 && embeddings[0].length === embeddings[1].length && embeddings[0].length > 0);
}

async function errors(provider) {
  await assert.rejects(generateText({ ...GREEDY, model: provider("other") }), (error) => {
    assert.ok(APICallError.isInstance(error) && error.statusCode === 404, String(error));
    return error.message.includes('"other"');
  });
}

const connect = (url) => {
  const settings = { name: "cake", baseURL: `${url}/v1`, apiKey: "none" };
  return [createOpenAICompatible({ ...settings, includeUsage: true, supportsStructuredOutputs: true }), createOpenAI(settings)];
};
const byBoth = ([name, check]) => [name, async (providers, model) => {
  for (const provider of providers) await check(provider, model);
}];
const checks = { answers, streams, callsTools, structuredOutput, embeds, errors };
await run(Object.fromEntries(Object.entries(checks).map(byBoth)), connect, "ai");
