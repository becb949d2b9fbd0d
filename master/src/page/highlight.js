// Colours of code: comments, strings, numbers and words of a language, found by one expression per language. What is no
// language that is known here stays plain.

/** Longer code stays plain: it is read again with every few tokens. */
const LONGEST = 40_000;

const words = (text) => new Set(text.trim().split(/\s+/));
const C_LIKE = { comments: ["//[^\\n]*", "/\\*[^]*?(?:\\*/|$)"], strings: ['"', "'"] };
const HASHED = { comments: ["#[^\\n]*"], strings: ['"', "'"] };

const C = words(`
  auto bool break case char class const constexpr continue default delete do double else enum extern false float
  for if inline int long namespace new nullptr operator private protected public return short signed sizeof static
  struct switch template this throw true try typedef typename union unsigned using virtual void volatile while
`);
const JAVASCRIPT = words(`
  any as async await boolean break case catch class const continue default delete do else enum export extends
  false finally for from function get if implements import in instanceof interface keyof let new null number of
  private protected public readonly return set static string super switch this throw true try type typeof
  undefined var void while yield
`);
const JAVA = words(`
  abstract as async await base boolean break by byte case catch char class const constructor continue data decimal
  default do double else enum event extends false final finally float for foreach fun get if implements import in
  init instanceof int interface internal is let long match namespace native new null object open operator out
  override package private protected public readonly record ref return sealed set short static string struct super
  suspend switch synchronized this throw throws trait true try typealias using val var virtual void volatile when
  where while with yield
`);
const LANGUAGES = [
  { names: "c h cpp c++ cc hpp cuda objc", ...C_LIKE, words: C },
  { names: "js javascript jsx mjs ts typescript tsx", ...C_LIKE, strings: ['"', "'", "`"], words: JAVASCRIPT },
  { names: "java kotlin kt scala cs csharp c# dart", ...C_LIKE, words: JAVA },
  { names: "swift", ...C_LIKE,
    words: words(`
      as associatedtype async await break case catch class continue default defer deinit do else enum extension
      fallthrough false fileprivate for func guard if import in init inout internal is let nil open operator private
      protocol public repeat rethrows return self static struct subscript super switch throw throws true try typealias
      var where while
    `) },
  { names: "rust rs", comments: C_LIKE.comments, strings: ['"'],
    words: words(`
      as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move
      mut pub ref return self Self static struct super trait true type union unsafe use where while bool char f32 f64
      i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize
    `) },
  { names: "go golang", ...C_LIKE, strings: ['"', "'", "`"],
    words: words(`
      bool break byte case chan const continue default defer else error fallthrough false float32 float64 for func go
      goto if import int int64 interface iota make map nil package range return rune select string struct switch true
      type uint var
    `) },
  { names: "php", comments: [...C_LIKE.comments, "#[^\\n]*"], strings: ['"', "'"],
    words: words(`
      abstract array as break case catch class const continue default do echo else elseif extends false final finally
      fn for foreach function global if implements include instanceof interface match namespace new null private
      protected public readonly require return static switch throw trait true try use while yield
    `) },
  { names: "css scss less", comments: ["/\\*[^]*?(?:\\*/|$)"], strings: ['"', "'"], words: words("important media supports import keyframes layer container from to and not or only") },
  { names: "python py python3", ...HASHED, comments: ['"""[^]*?(?:"""|$)', "'''[^]*?(?:'''|$)", "#[^\\n]*"],
    words: words(`
      False None True and as assert async await break case class continue def del elif else except finally for from
      global if import in is lambda match nonlocal not or pass raise return self try while with yield
    `) },
  { names: "ruby rb", ...HASHED,
    words: words(`
      alias and begin break case class def defined do else elsif end ensure false for if in module next nil not or
      redo require rescue retry return self super then true undef unless until when while yield
    `) },
  { names: "sh bash shell zsh console", ...HASHED, comments: ["(?<![^\\s;])#[^\\n]*"],
    words: words(`
      case cd do done echo elif else esac exit export fi for function if in local return set then unset until while
    `) },
  { names: "yaml yml toml ini", ...HASHED, comments: ["(?<!\\S)[#;][^\\n]*"], words: words("true false null yes no on off") },
  { names: "dockerfile docker makefile make", ...HASHED,
    words: words(`
      ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL RUN USER VOLUME WORKDIR ifeq endif else include
    `) },
  { names: "json jsonc json5", ...C_LIKE, strings: ['"'], words: words("true false null") },
  { names: "lua", comments: ["--\\[\\[[^]*?(?:\\]\\]|$)", "--[^\\n]*"], strings: ['"', "'"],
    words: words(`
      and break do else elseif end false for function if in local nil not or repeat return then true until while
    `) },
  { names: "haskell hs elm", comments: ["--[^\\n]*", "\\{-[^]*?(?:-\\}|$)"], strings: ['"'],
    words: words(`
      case class data deriving do else if import in infix instance let module newtype of then type where
    `) },
  { names: "sql postgresql mysql sqlite", comments: ["--[^\\n]*", "/\\*[^]*?(?:\\*/|$)"], strings: ["'", '"'], anyCase: true,
    words: words(`
      add all alter and as asc between by case cast check column constraint create cross default delete desc distinct
      drop else end exists foreign from full group having if in index inner insert into is join key left like limit
      not null offset on or order outer over partition primary references returning right select set table then union
      unique update values view when where with
    `) },
  { names: "html xml svg vue xhtml", comments: ["<!--[^]*?(?:-->|$)"], strings: ['"', "'"], tags: true, words: new Set() },
];

const known = new Map();
for (const language of LANGUAGES) {
  language.pattern = pattern(language);
  language.names.split(" ").forEach((name) => known.set(name, language));
}

/** Comments first, then strings, numbers, tags, words and whatever else has letters. */
function pattern({ comments, strings, tags }) {
  const quoted = strings.map((mark) => {
    const inside = mark === "`" ? "[^`\\\\]" : `[^${mark}\\\\\\n]`;
    return `${mark}(?:${inside}|\\\\[^])*(?:${mark}|$|(?=\\n))`;
  });
  const tag = tags ? "</?[A-Za-z][\\w:.-]*|/?>" : "(?!)";
  const parts = [
    `(?<comment>${comments.join("|")})`,
    `(?<string>${quoted.join("|")})`,
    `(?<tag>${tag})`,
    "(?<number>(?<![\\w.])(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w*)",
    "(?<word>[A-Za-z_$][\\w$]*)",
  ];
  return new RegExp(parts.join("|"), "g");
}

/** Makes `node` show `text`, in the colours of the language of this name if it is known. */
export function colour(node, text, name) {
  const language = known.get((name ?? "").toLowerCase());
  const isDiff = /^(?:diff|patch)$/i.test(name ?? "");
  if (text.length > LONGEST || !(language || isDiff)) {
    node.textContent = text;
    return;
  }
  node.replaceChildren(...(isDiff ? diffed(text) : coloured(text, language)));
}

function coloured(text, { pattern, words, anyCase }) {
  const made = [];
  let at = 0;
  for (const found of text.matchAll(pattern)) {
    const [kind, part] = Object.entries(found.groups).find(([, value]) => value !== undefined);
    const end = found.index + part.length;
    const isKeyword = kind === "word" && words.has(anyCase ? part.toLowerCase() : part);
    const isCall = kind === "word" && !isKeyword && text[end] === "(";
    if (kind === "word" && !isKeyword && !isCall) {
      continue;
    }
    made.push(text.slice(at, found.index), span(isKeyword ? "keyword" : isCall ? "call" : kind, part));
    at = end;
  }
  return [...made, text.slice(at)];
}

function diffed(text) {
  const kinds = { "+": "added", "-": "removed", "@": "keyword" };
  const lines = text.split(/(?<=\n)/);
  return lines.map((line) => (kinds[line[0]] ? span(kinds[line[0]], line) : line));
}

function span(kind, text) {
  const made = document.createElement("span");
  made.className = `code-${kind}`;
  made.textContent = text;
  return made;
}
