// Markdown as models write it, drawn as nodes of the page: blocks here, what is inside a line in
// inline.js. Text stays text: nothing is parsed as HTML, and no image is fetched.
//
// An answer is drawn again with every few tokens, so it is cut into blocks, and blocks that are as they
// were keep their nodes: what is selected or has the focus in them is left alone. The last block of an
// answer that still grows is `open`: what has begun there but not ended yet is drawn as if it had.

import { copied } from "./copy.js";
import { colour } from "./highlight.js";
import { write } from "./inline.js";
import { formula } from "./math.js";

/** Quotes and lists may hold each other this deep; beyond, they are text. */
const DEEPEST = 6;

/** Larger tables are shown as they were written. */
const MOST_CELLS = 20_000;

// None of these goes over a line more than a few times, whatever is in it.
const FENCE = /^[ \t]*(`{3,}(?!`)|~{3,}(?!~))[ \t]*([^\s`]*)(?:\s[^`]*)?$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(\S[^]*)?)?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const MATH = /^\s*(\$\$|\\\[)/;
const TASK = /^\[([ xX])\][ \t]+/;
const ITEM = /^[ \t]*([-*+]|\d{1,9}[.)])(?:[ \t]+(.*))?$/;
const UNDER_TABLE_HEAD = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

const drawn = new WeakMap(); // The blocks that each container shows.

/** Makes `container` show `text`, of which more is to come if it is `open`. */
export function drawMarkdown(container, text, open = false) {
  const old = drawn.get(container) ?? [];
  const blocks = cut(text);
  blocks.forEach((block, index) => {
    block.open = open && index === blocks.length - 1;
  });
  let same = 0;
  const isSame = (a, b) => a?.source === b?.source && a?.open === b?.open;
  while (same < Math.min(old.length, blocks.length) && isSame(old[same], blocks[same])) {
    blocks[same].node = old[same].node;
    same += 1;
  }
  const [before, now] = [old[same], blocks[same]];
  if (before?.kind === "code" && now?.kind === "code" && before.language === now.language) {
    // Code that grows keeps its place if it was scrolled.
    colour(before.node.querySelector("code"), now.text, now.language);
    now.node = before.node;
    same += 1;
  }
  old.slice(same).forEach((block) => block.node.remove());
  for (const block of blocks.slice(same)) {
    block.node = draw(block, 0);
    container.append(block.node);
  }
  drawn.set(container, blocks);
}

// Blocks.

/** The blocks of `text`, each with the lines it is made of. */
function cut(text) {
  const lines = text.split(/\r\n?|\n/);
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const kinds = [code, math, heading, rule, quote, table, list];
    const block = kinds.reduce((found, kind) => found ?? kind(lines, at), null) ?? paragraph(lines, at);
    block.source = lines.slice(at, block.end).join("\n");
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function code(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]) ?? [];
  if (mark === undefined) {
    return null;
  }
  const ends = (line) => line.trim().length >= mark.length && line.trim().replaceAll(mark[0], "") === "";
  let end = at + 1;
  while (end < lines.length && !ends(lines[end])) {
    end += 1;
  }
  const shift = indent(lines[at]);
  const inside = lines.slice(at + 1, end).map((line) => dedent(line, shift));
  return { kind: "code", language, text: inside.join("\n"), end: Math.min(end + 1, lines.length) };
}

/** A formula on lines of its own; one that has not ended yet is text. */
function math(lines, at) {
  const [, mark] = MATH.exec(lines[at]) ?? [];
  if (mark === undefined) {
    return null;
  }
  const last = mark === "$$" ? "$$" : "\\]";
  const first = lines[at].trim().slice(2);
  let end = at;
  while (end < lines.length && !(end === at ? first : lines[end]).trim().endsWith(last)) {
    if (isBlank(lines[end])) {
      return null;
    }
    end += 1;
  }
  if (end === lines.length) {
    return null;
  }
  const inside = [first, ...lines.slice(at + 1, end + 1)].join("\n").trim().slice(0, -2);
  return inside.includes(mark) || inside.trim() === "" ? null : { kind: "math", text: inside, end: end + 1 };
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  return found && { kind: "heading", level: found[1].length, text: withoutMarks(found[2] ?? ""), end: at + 1 };
}

/** The text of a heading without the marks after it. */
function withoutMarks(text) {
  const end = text.trimEnd();
  let at = end.length;
  while (end[at - 1] === "#") {
    at -= 1;
  }
  return at === 0 || /[ \t]/.test(end[at - 1]) ? end.slice(0, at).trimEnd() : end;
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { kind: "rule", end: at + 1 } : null;
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) {
    end += 1;
  }
  const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return end === at ? null : { kind: "quote", text: inside.join("\n"), end };
}

function isTable(lines, at) {
  const under = lines[at + 1] ?? "";
  return lines[at].includes("|") && under.includes("|") && UNDER_TABLE_HEAD.test(under);
}

function table(lines, at) {
  if (!isTable(lines, at)) {
    return null;
  }
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) {
    end += 1;
  }
  const [head, under, ...rows] = lines.slice(at, end).map(cells);
  if (head.length * rows.length > MOST_CELLS) {
    return { kind: "code", language: "", text: lines.slice(at, end).join("\n"), end };
  }
  const sides = under.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
  return { kind: "table", head, sides, rows, end };
}

/** The cells of a line; `\|` is a stroke within one. */
function cells(line) {
  const inside = line.trim().replaceAll("\\|", "\0").replace(/^\|/, "").replace(/\|$/, "");
  return inside.split("|").map((cell) => cell.replaceAll("\0", "|").trim());
}

/** A list: items with a mark of the same kind, and below each what is indented under it. */
function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first) {
    return null;
  }
  const base = indent(lines[at]);
  const isOrdered = (mark) => /\d/.test(mark);
  const isBelow = (line) => indent(line) >= base + 2;
  const beside = (line) => {
    const item = isBelow(line) || RULE.test(line) ? null : ITEM.exec(line);
    return item && isOrdered(item[1]) === isOrdered(first[1]) ? item : null;
  };
  const items = [];
  let end = at;
  while (end < lines.length) {
    const line = lines[end];
    if (isBlank(line)) {
      const next = lines.slice(end).find((later) => !isBlank(later));
      if (next === undefined || !(isBelow(next) || beside(next))) {
        break;
      }
      items.at(-1).lines.push("");
    } else if (end === at || beside(line)) {
      const [, mark, text = ""] = ITEM.exec(line);
      items.push({ lines: [text], offset: indent(line) + mark.length + 1, shift: null });
    } else if (isBelow(line)) {
      // Many indent by less than the mark is wide: the first line below an item says by how much.
      const item = items.at(-1);
      item.shift ??= Math.min(item.offset, indent(line));
      item.lines.push(dedent(line, item.shift));
    } else if (isBlank(lines[end - 1]) || begins(lines, end)) {
      break;
    } else {
      items.at(-1).lines.push(line.trim());
    }
    end += 1;
  }
  const start = isOrdered(first[1]) ? parseInt(first[1], 10) : null;
  return { kind: "list", start, items: items.map((item) => item.lines.join("\n").trimEnd()), end };
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !begins(lines, end)) {
    end += 1;
  }
  return { kind: "paragraph", text: lines.slice(at, end).join("\n").trim(), end };
}

/** Whether a block that is no paragraph begins here. */
function begins(lines, at) {
  const isBlock = [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(lines[at]));
  return isBlock || isTable(lines, at) || math(lines, at) !== null;
}

function isBlank(line) {
  return line.trim() === "";
}

/** Columns before the first sign; a tab is four. */
function indent(line) {
  return /^[ \t]*/.exec(line)[0].replaceAll("\t", "    ").length;
}

/** `line` without up to so many columns of its indentation. */
function dedent(line, columns) {
  let at = 0;
  for (let left = columns; left > 0 && (line[at] === " " || line[at] === "\t"); at += 1) {
    left -= line[at] === "\t" ? 4 : 1;
  }
  return line.slice(at);
}

// Nodes.

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function written(tag, text, open) {
  const made = element(tag);
  write(made, text, open);
  return made;
}

function draw(block, depth) {
  const { kind, text, open } = block;
  switch (kind) {
    case "code":
      return drawCode(block);
    case "math":
      return element("div", formula(text, true));
    case "heading":
      return written(`h${Math.min(block.level + 2, 6)}`, text, open); // The page's own are h1 and h2.
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", ...inner(text, open, depth));
    case "list":
      return drawList(block, depth);
    case "table":
      return drawTable(block);
    default:
      return written("p", text, open);
  }
}

/** The blocks inside another one. */
function inner(text, open, depth) {
  if (depth >= DEEPEST) {
    return [written("p", text, open)];
  }
  const blocks = cut(text);
  return blocks.map((block, index) => {
    return draw({ ...block, open: open && index === blocks.length - 1 }, depth + 1);
  });
}

function drawList({ start, items, open }, depth) {
  const made = element(start === null ? "ul" : "ol");
  if (start !== null) {
    made.start = start;
  }
  items.forEach((item, index) => {
    const [mark, done] = TASK.exec(item) ?? [""];
    const text = item.slice(mark.length);
    const parts = inner(text, open && index === items.length - 1, depth);
    // Without blank lines between them, items are lines of text rather than paragraphs.
    const isTight = !text.includes("\n\n");
    const unwrapped = parts.map((part) => (isTight && part.tagName === "P" ? [...part.childNodes] : [part]));
    const line = element("li", ...(mark ? [box(done !== " ")] : []), ...unwrapped.flat());
    line.classList.toggle("task", mark !== "");
    made.append(line);
  });
  return made;
}

/** The box of a task: to look at, not to press. */
function box(isDone) {
  const made = element("span", isDone ? "☑" : "☐");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", isDone ? "done" : "to do");
  return made;
}

function drawTable({ head, sides, rows }) {
  const row = (tag, texts) => {
    const made = head.map((_, column) => {
      const cell = written(tag, texts[column] ?? "", false);
      cell.style.setProperty("text-align", sides[column] ?? "left");
      return cell;
    });
    return element("tr", ...made);
  };
  const body = element("tbody", ...rows.map((texts) => row("td", texts)));
  const made = element("div", element("table", element("thead", row("th", head)), body));
  made.className = "wide-table";
  made.tabIndex = 0; // It scrolls if it is wide, also by keyboard.
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", "Table");
  return made;
}

function drawCode({ language, text }) {
  const body = element("code");
  colour(body, text, language);
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.addEventListener("click", () => copied(copy, body.textContent, body));
  const pre = element("pre", body);
  pre.tabIndex = 0;
  const made = element("div", element("div", element("span", language || "text"), copy), pre);
  made.className = "code";
  return made;
}
