// What Markdown has inside a line: emphasis, code, links, formulas. `write` reads from left to right; at each place
// the first rule that matches makes a node, and what no rule takes is text.

import { formula } from "./math.js";

/** Emphasis may hold emphasis this deep; beyond, its marks are text. */
const DEEPEST = 6;

// The lengths in the patterns bound what a model that only writes stars costs to read.
const STRONG = /\*\*(?=\S)([^]{0,1500}?\S)\*\*(?!\*)/y;
const EMPHASIS = /\*(?=[^\s*])([^]{0,1500}?[^\s*])\*(?!\*)/y;
const STRONG_LOW = /__(?=[^\s_])([^]{0,1500}?[^\s_])__(?![\p{L}\p{N}_])/uy;
const EMPHASIS_LOW = /_(?=[^\s_])([^]{0,1500}?[^\s_])_(?![\p{L}\p{N}_])/uy;
const STRUCK = /~~(?=[^\s~])([^]{0,1500}?[^\s~])~~/y;
// No space beside the signs, and no digit behind them: prices are no formulas.
const MATH = /\$(?![\s$])([^$\n]{0,1500}?[^\s$\\])\$(?![\d$])/y;
const MATH_BLOCK = /\$\$([^$]{1,4000})\$\$|\\\[([^]{1,4000}?)\\\]/y;
const MATH_IN_BRACKETS = /\\\(([^]{1,1500}?)\\\)/y;
const CODE = /(`+)(?!`)([^]{0,4000}?[^`])\1(?!`)/y;
// A label, which may have brackets in it, and an address, which may have parentheses; a title is dropped.
const LINK = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]{0,500}\]){0,500})\]\(\s*<?((?:[^\s()<>]|\([^\s()<>]{0,500}\)){0,2000})>?(?:\s+"[^"]*")?\s*\)/y;
const ADDRESS = /https?:\/\/[^\s<>"`*]*[^\s<>"`*.,:;!?'()[\]{}_~]/iy;
const ADDRESS_IN_BRACKETS = /<(https?:\/\/[^\s<>]+)>/iy;
// What has begun at the end of a text that still grows.
const OPEN_STRONG = /\*\*(?=\S)([^]{1,1500})$/y;
const OPEN_CODE = /`+(?!`)([^`]+)$/y;
const OPEN_LINK = /!?\[([^[\]]*)\]\([^\s)]*$/y;

const RULES = [
  { pattern: MATH_BLOCK, node: ([, tex, other]) => formula(tex ?? other, true) },
  { pattern: MATH_IN_BRACKETS, node: ([, tex]) => formula(tex, false) },
  { pattern: MATH, node: ([, tex]) => formula(tex, false), afterWord: false },
  { pattern: /\\([!-/:-@[-`{-~])/y, node: ([, sign]) => sign },
  { pattern: CODE, node: ([, , text]) => element("code", unpadded(text)) },
  { pattern: LINK, node: ([, label, address], place) => link(address, label, place) },
  { pattern: ADDRESS_IN_BRACKETS, node: ([, address]) => anchor(address, address), unlinked: true },
  { pattern: ADDRESS, node: ([address]) => anchor(address, address), unlinked: true, afterWord: false },
  { pattern: STRONG, node: ([, text], place) => holding("strong", text, place) },
  { pattern: EMPHASIS, node: ([, text], place) => holding("em", text, place) },
  // Low lines inside a word are part of it, as in snake_case.
  { pattern: STRONG_LOW, node: ([, text], place) => holding("strong", text, place), afterWord: false },
  { pattern: EMPHASIS_LOW, node: ([, text], place) => holding("em", text, place), afterWord: false },
  { pattern: STRUCK, node: ([, text], place) => holding("del", text, place) },
  { pattern: /<br\s*\/?>/iy, node: () => element("br") },
];
const OPEN_RULES = [
  { pattern: OPEN_CODE, node: ([, text]) => element("code", text) },
  { pattern: OPEN_LINK, node: ([, label], place) => holding("span", label, place) },
  { pattern: OPEN_STRONG, node: ([, text], place) => holding("strong", text, { ...place, open: true }) },
];

/** Text up to the next sign with which a rule may begin. */
const PLAIN = /[^\\`*_~[!<h$]+/iy;
const WORD = /[\p{L}\p{N}_]$/u;

/** Appends `text` to `parent`. If it is `open`, more is to come, and what has begun is drawn as if it had ended. */
export function write(parent, text, open) {
  // Marks at the very end may be the first half of a mark.
  const whole = open ? text.replace(/[*`]{1,3}$/, "") : text;
  fill(parent, whole, { open, depth: 0, linked: false });
}

function fill(parent, text, place) {
  const rules = place.open ? [...RULES, ...OPEN_RULES] : RULES;
  let plain = "";
  let at = 0;
  const reading = (rule) => {
    const isInWord = () => WORD.test(text.slice(Math.max(0, at - 2), at)); // Some letters take two places.
    if ((rule.unlinked && place.linked) || (rule.afterWord === false && isInWord())) {
      return null;
    }
    rule.pattern.lastIndex = at;
    return rule.pattern.exec(text);
  };
  while (at < text.length) {
    PLAIN.lastIndex = at;
    const run = PLAIN.exec(text);
    if (run) {
      plain += run[0];
      at += run[0].length;
      continue;
    }
    let found = null;
    const rule = place.depth < DEEPEST && rules.find((candidate) => (found = reading(candidate)));
    if (!rule) {
      plain += text[at];
      at += 1;
      continue;
    }
    const node = rule.node(found, { ...place, open: false, depth: place.depth + 1 });
    if (typeof node === "string") {
      plain += node;
    } else {
      parent.append(plain, node);
      plain = "";
    }
    at += found[0].length;
  }
  parent.append(plain);
}

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function holding(tag, text, place) {
  const made = element(tag);
  fill(made, text, place);
  return made;
}

/** A link if `address` is one that may be followed, else just its label. */
function link(address, label, place) {
  const made = place.linked ? element("span") : anchor(address, "");
  fill(made, label || address, { ...place, linked: true });
  return made;
}

/** Only http and https lead away from here: no script, no file. */
function anchor(address, label) {
  let url = null;
  try {
    url = new URL(address);
  } catch {
    // Half an address, or a path of somebody else's site.
  }
  if (url?.protocol !== "http:" && url?.protocol !== "https:") {
    return element("span", label);
  }
  const made = element("a", label);
  made.href = url.href;
  made.rel = "noopener noreferrer";
  made.target = "_blank";
  return made;
}

/** Code that begins or ends with a backtick is written with a space there, which is not part of it. */
function unpadded(text) {
  return /^ .* $/s.test(text) && text.trim() !== "" ? text.slice(1, -1) : text;
}
