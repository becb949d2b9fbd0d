// Conversations as files: all of them as JSON with every version, what is shown of one as Markdown.

/** Of a conversation and its turns, for programs. */
export function asJson(kept, turns) {
  const { title, created, changed, system, options, leaf } = kept;
  const time = (milliseconds) => new Date(milliseconds).toISOString();
  const said = turns.map(({ id, parent, made, model, question, thought, answer, end, stats }) => {
    return { id, parent, made: time(made), model, question, thought, answer, end, usage: stats?.usage ?? null };
  });
  const whole = { format: "cake-conversation", version: 1, title, created: time(created), changed: time(changed) };
  return JSON.stringify({ ...whole, system, options, shown: leaf, turns: said }, null, 2);
}

/** Of a conversation and the turns that are shown, for people. */
export function asMarkdown({ title, system, created }, path) {
  const parts = [`# ${title}`, new Date(created).toLocaleString()];
  if (system) {
    parts.push("## Told before all else", system);
  }
  for (const { question, answer, model } of path) {
    parts.push("## You", question, `## ${model ?? "Answer"}`, answer || "(no answer)");
  }
  return `${parts.join("\n\n")}\n`;
}

/** Lets the browser save `text` as a file that is called after `title`. */
export function save(title, ending, text) {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").toLowerCase() || "conversation";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: ending === "json" ? "application/json" : "text/markdown" }));
  link.download = `${name}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href));
}
