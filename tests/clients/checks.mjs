// What the scripts of clients for JavaScript share, as checks.py is for those in Python.
import { readFileSync } from "node:fs";

export const ASKED = "What is the capital of France?";
export const QUESTION = [{ role: "user", content: ASKED }];
export const ANSWER = "The capital of France is Paris.";
// As a program would write it, which says nothing of other properties.
export const PLACE = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 }, unit: { enum: ["celsius", "fahrenheit"] } },
  required: ["city", "unit"],
};

// Makes all checks, functions by their names, with the client, of the package of this name, that `connect` gives for a URL.
export async function run(checks, connect, name) {
  const [url, model] = process.argv.slice(2);
  const client = connect(url);
  for (const [check, made] of Object.entries(checks)) {
    await made(client, model);
    console.log(`${check}: ok`);
  }
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
  console.log(`${Object.keys(checks).length} checks passed with ${name} ${version}`);
}
