// Formulas: TeX as models write it, drawn as MathML, which browsers lay out by themselves. What is not known here is
// shown as it was written.

import { ACCENTS, ENVIRONMENTS, FENCES, FUNCTIONS, LETTERS, LIMITS, OPERATORS, SPACES } from "./symbols.js";

/** Longer formulas, and deeper ones, are shown as they were written. */
const LONGEST = 4_000;
const DEEPEST = 40;

/** Letters of other alphabets that Unicode had before the others, at places of their own. */
const EARLY = {
  mathbb: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
  mathcal: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
};

/** A formula; `isBlock` where it has lines of its own. */
export function formula(tex, isBlock) {
  try {
    const math = element("math", ...new Parser(tex, isBlock).all());
    math.setAttribute("display", isBlock ? "block" : "inline");
    return math;
  } catch (error) {
    if (!(error instanceof Unknown)) {
      throw error;
    }
    const made = document.createElement("code");
    made.className = "tex";
    made.textContent = tex.trim();
    return made;
  }
}

/** TeX that is not known here. */
class Unknown extends Error {}

function element(tag, ...children) {
  const made = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  made.append(...children);
  return made;
}

function withAttributes(made, attributes) {
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  return made;
}

const row = (nodes) => (nodes.length === 1 ? nodes[0] : element("mrow", ...nodes));
const operator = (sign, attributes = {}) => withAttributes(element("mo", sign), attributes);
const fence = (sign) => (sign === "" ? element("mrow") : operator(sign, { stretchy: "true", fence: "true" }));

class Parser {
  #tokens;
  #at = 0;
  #depth = 0;
  #isBlock;

  constructor(tex, isBlock) {
    if (tex.length > LONGEST) {
      throw new Unknown();
    }
    // Commands, numbers, and single signs; spaces mean nothing, and are kept for texts alone.
    this.#tokens = tex.match(/\\(?:[A-Za-z]+\*?|[^])|\d+(?:\.\d+)?|\s+|[^]/gu) ?? [];
    this.#isBlock = isBlock;
  }

  all() {
    const nodes = this.#nodes(() => false);
    if (this.#peek() !== undefined) {
      throw new Unknown();
    }
    return nodes;
  }

  #peek() {
    while (/^\s/.test(this.#tokens[this.#at] ?? "")) {
      this.#at += 1;
    }
    return this.#tokens[this.#at];
  }

  #next() {
    const token = this.#peek();
    this.#at += 1;
    return token;
  }

  #expect(token) {
    if (this.#next() !== token) {
      throw new Unknown();
    }
  }

  /** What stands up to a token that `ends` names, which is left there. */
  #nodes(ends) {
    this.#depth += 1;
    if (this.#depth > DEEPEST) {
      throw new Unknown();
    }
    const nodes = [];
    for (let token = this.#peek(); token !== undefined && token !== "}" && !ends(token); token = this.#peek()) {
      nodes.push(this.#scripted());
    }
    this.#depth -= 1;
    return nodes;
  }

  /** One thing with what stands above and below it. */
  #scripted() {
    const first = this.#peek();
    const base = first === "^" || first === "_" ? element("mrow") : this.#atom();
    const hasLimits = this.#isBlock && LIMITS.has(first);
    let [below, above] = [null, null];
    for (;;) {
      const token = this.#peek();
      if (token === "\\limits" || token === "\\nolimits") {
        this.#next();
      } else if (token === "_" && below === null) {
        this.#next();
        below = this.#argument();
      } else if (token === "^" && above === null) {
        this.#next();
        above = this.#argument();
      } else if (token === "'" && above === null) {
        let marks = "";
        while (this.#peek() === "'") {
          this.#next();
          marks += "′";
        }
        above = operator(marks);
      } else {
        break;
      }
    }
    const name = hasLimits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (below && above) {
      return element(name[2], base, below, above);
    }
    return below ? element(name[0], base, below) : above ? element(name[1], base, above) : base;
  }

  /** What a command is about: a group, or the next thing alone. */
  #argument() {
    if (this.#peek() !== "{") {
      return this.#atom();
    }
    this.#next();
    const inside = row(this.#nodes(() => false));
    this.#expect("}");
    return inside;
  }

  /** The letters of a group, as they stand there. */
  #words() {
    this.#expect("{");
    let words = "";
    for (let depth = 0; ; this.#at += 1) {
      const token = this.#tokens[this.#at];
      if (token === undefined) {
        throw new Unknown();
      }
      if (token === "}" && depth === 0) {
        this.#at += 1;
        return words;
      }
      depth += token === "{" ? 1 : token === "}" ? -1 : 0;
      words += /^\\[^A-Za-z]$/.test(token) ? token[1] : token;
    }
  }

  #atom() {
    const token = this.#next();
    if (token === undefined || token === "}" || token === "&") {
      throw new Unknown();
    }
    if (token === "{") {
      this.#at -= 1;
      return this.#argument();
    }
    if (/^\d/.test(token)) {
      return element("mn", token);
    }
    if (/^\p{L}$/u.test(token)) {
      return element("mi", token);
    }
    if (token[0] === "\\") {
      return this.#command(token.slice(1));
    }
    return operator(token === "-" ? "−" : token, "()[]|".includes(token) ? { stretchy: "false" } : {});
  }

  #command(name) {
    const own = (table) => (Object.hasOwn(table, name) ? table[name] : undefined);
    if (own(LETTERS) !== undefined) {
      return element("mi", LETTERS[name]);
    }
    if (own(OPERATORS) !== undefined) {
      return operator(OPERATORS[name]);
    }
    if (FUNCTIONS.has(name)) {
      return withAttributes(element("mi", name), { mathvariant: "normal" });
    }
    if (own(SPACES) !== undefined) {
      return withAttributes(element("mspace"), { width: SPACES[name] });
    }
    if (own(ACCENTS) !== undefined) {
      const { sign, below } = ACCENTS[name];
      const base = this.#argument();
      const mark = operator(sign, { stretchy: String(ACCENTS[name].wide ?? false) });
      return below ? element("munder", base, mark) : withAttributes(element("mover", base, mark), { accent: "true" });
    }
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
      case "cfrac":
        return element("mfrac", this.#argument(), this.#argument());
      case "binom": {
        const parts = withAttributes(element("mfrac", this.#argument(), this.#argument()), { linethickness: "0" });
        return element("mrow", fence("("), parts, fence(")"));
      }
      case "sqrt":
        return this.#root();
      case "left":
        return this.#fenced();
      case "big": case "Big": case "bigg": case "Bigg":
      case "bigl": case "bigr": case "Bigl": case "Bigr": case "biggl": case "biggr":
        return operator(this.#fence());
      case "begin":
        return this.#environment();
      case "text": case "textrm": case "textit": case "textbf": case "mbox":
        return element("mtext", this.#words().replaceAll(" ", "\u00a0"));
      case "mathrm": case "operatorname": case "operatorname*": case "mathsf": case "mathtt":
        return withAttributes(element("mi", this.#words()), { mathvariant: "normal" });
      case "mathbb": case "mathbf": case "boldsymbol": case "mathcal": case "mathit": case "bm":
        return this.#styled(name);
      case "boxed":
        return withAttributes(element("mrow", this.#argument()), { class: "boxed" });
      case "pmod": {
        const mod = withAttributes(element("mi", "mod"), { mathvariant: "normal" });
        const space = withAttributes(element("mspace"), { width: "0.3em" });
        return element("mrow", operator("("), mod, space, this.#argument(), operator(")"));
      }
      case "overset": case "stackrel": {
        const above = this.#argument();
        return element("mover", this.#argument(), above);
      }
      case "underset": {
        const below = this.#argument();
        return element("munder", this.#argument(), below);
      }
      case "overbrace":
        return element("mover", this.#argument(), operator("⏞", { stretchy: "true" }));
      case "underbrace":
        return element("munder", this.#argument(), operator("⏟", { stretchy: "true" }));
      case "not":
        return operator(`${this.#atom().textContent}\u0338`);
      case "displaystyle": case "textstyle": case "limits": case "nolimits": case "nonumber": case "notag":
        return element("mrow");
      default:
        throw new Unknown();
    }
  }

  #root() {
    if (this.#peek() !== "[") {
      return element("msqrt", this.#argument());
    }
    this.#next();
    const degree = row(this.#nodes((token) => token === "]"));
    this.#expect("]");
    return element("mroot", this.#argument(), degree);
  }

  #fence() {
    const token = this.#next();
    const name = token?.[0] === "\\" ? token.slice(1) : token;
    if (name === undefined || !Object.hasOwn(FENCES, name)) {
      throw new Unknown();
    }
    return FENCES[name];
  }

  #fenced() {
    const first = fence(this.#fence());
    const inside = [];
    for (;;) {
      inside.push(...this.#nodes((token) => token === "\\right" || token === "\\middle"));
      if (this.#next() !== "\\middle") {
        break;
      }
      inside.push(fence(this.#fence()));
    }
    if (this.#tokens[this.#at - 1] !== "\\right") {
      throw new Unknown();
    }
    return element("mrow", first, ...inside, fence(this.#fence()));
  }

  #environment() {
    const name = this.#words();
    if (!Object.hasOwn(ENVIRONMENTS, name)) {
      throw new Unknown();
    }
    const { first, last, align = "", columns } = ENVIRONMENTS[name];
    if (columns && this.#peek() === "{") {
      this.#words(); // How columns stand, with lines between them, is left to the browser.
    }
    const rows = [[]];
    const ends = (token) => token === "&" || token === "\\\\" || token === "\\end";
    for (;;) {
      rows.at(-1).push(element("mtd", ...this.#nodes(ends)));
      const token = this.#next();
      if (token === "\\\\") {
        rows.push([]);
      } else if (token !== "&") {
        break;
      }
    }
    if (this.#tokens[this.#at - 1] !== "\\end" || this.#words() !== name) {
      throw new Unknown();
    }
    if (rows.at(-1).length === 1 && rows.at(-1)[0].childNodes.length === 0) {
      rows.pop(); // A break after the last row.
    }
    const table = element("mtable", ...rows.map((cells) => element("mtr", ...cells)));
    table.setAttribute("class", align);
    const fences = [first, last].map((sign) => (sign ? [fence(sign)] : []));
    return element("mrow", ...fences[0], table, ...fences[1]);
  }

  /** Letters of another alphabet, which Unicode has places for. */
  #styled(name) {
    const argument = this.#argument();
    const letters = argument.textContent;
    if (name === "mathit" || argument.children.length > 0 && name !== "mathbf" && name !== "mathbb") {
      return argument;
    }
    const starts = { mathbb: [0x1d538, 0x1d552, 0x1d7d8], mathcal: [0x1d49c, 0x1d4b6, null] };
    const [upper, lower, digit] = starts[name] ?? [0x1d400, 0x1d41a, 0x1d7ce];
    const early = EARLY[name] ?? {};
    const places = [[/[A-Z]/, upper, 65], [/[a-z]/, lower, 97], [/\d/, digit, 48]];
    const turned = Array.from(letters, (letter) => {
      const [, start, from] = places.find(([kind, to]) => kind.test(letter) && to !== null) ?? [];
      return early[letter] ?? (start ? String.fromCodePoint(start + letter.codePointAt(0) - from) : letter);
    });
    return element("mi", turned.join(""));
  }
}
