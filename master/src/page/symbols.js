// What TeX's commands stand for: letters, operators, spaces, accents, fences and environments.

const pairs = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => pair.split("=", 2)));

export const LETTERS = {
  ...pairs(`
    alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ
    mu=μ nu=ν xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ
    psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω
    infty=∞ partial=∂ nabla=∇ hbar=ℏ ell=ℓ Re=ℜ Im=ℑ aleph=ℵ emptyset=∅ varnothing=∅ imath=ı jmath=ȷ wp=℘
    top=⊤ bot=⊥ angle=∠ triangle=△ square=□ Box=□ checkmark=✓ degree=° dagger=†
  `),
  $: "$", "%": "%", "#": "#", "&": "&", _: "_",
};

export const OPERATORS = {
  ...pairs(`
    times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ wedge=∧ land=∧
    vee=∨ lor=∨ cap=∩ cup=∪ setminus=∖ leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ approx=≈ sim=∼ simeq=≃ cong=≅ equiv=≡
    propto=∝ ll=≪ gg=≫ prec=≺ succ=≻ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ in=∈ notin=∉ ni=∋ forall=∀ exists=∃
    nexists=∄ neg=¬ lnot=¬ to=→ rightarrow=→ leftarrow=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐
    Leftrightarrow=⇔ implies=⟹ iff=⟺ mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ uparrow=↑ downarrow=↓ gets=←
    sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂
    ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ mid=∣ nmid=∤ parallel=∥ perp=⊥ vdash=⊢ models=⊨
    therefore=∴ because=∵ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=| lVert=‖ rVert=‖
    vert=| Vert=‖ prime=′ colon=: asymp=≍ doteq=≐ triangleq=≜ coloneqq=≔ backslash=\\ lbrace={ rbrace=} surd=√
    rightleftharpoons=⇌ hookrightarrow=↪ upharpoonright=↾
  `),
  "{": "{", "}": "}", "|": "‖",
};

/** What has its limits above and below it where there is room. */
export const LIMITS = new Set(
  "sum prod coprod bigcup bigcap bigoplus bigotimes lim limsup liminf max min sup inf argmax argmin det gcd Pr"
    .split(" ")
    .map((name) => `\\${name}`)
    .concat("\\operatorname*", "\\underbrace", "\\overbrace"),
);

export const FUNCTIONS = new Set(
  "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp lim limsup liminf max min sup inf det dim ker deg gcd arg hom Pr argmax argmin mod bmod".split(
    " ",
  ),
);

export const SPACES = { ",": "0.17em", ":": "0.22em", ">": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.25em", quad: "1em", qquad: "2em" };

export const ACCENTS = {
  hat: { sign: "^" }, widehat: { sign: "^", wide: true }, bar: { sign: "¯" }, overline: { sign: "¯", wide: true },
  vec: { sign: "→" }, overrightarrow: { sign: "→", wide: true }, tilde: { sign: "~" }, widetilde: { sign: "~", wide: true },
  dot: { sign: "˙" }, ddot: { sign: "¨" }, check: { sign: "ˇ" }, breve: { sign: "˘" },
  underline: { sign: "_", wide: true, below: true },
};

export const FENCES = {
  "(": "(", ")": ")", "[": "[", "]": "]", "|": "|", "/": "/", ".": "", "{": "{", "}": "}", "<": "⟨", ">": "⟩",
  ...pairs("lbrace={ rbrace=} langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ vert=| Vert=‖ lvert=| rvert=| lVert=‖ rVert=‖ lbrack=[ rbrack=] uparrow=↑ downarrow=↓"),
};

/** `align` is the table's class; "" where columns stand in the middle. */
export const ENVIRONMENTS = {
  matrix: {}, smallmatrix: {}, pmatrix: { first: "(", last: ")" }, bmatrix: { first: "[", last: "]" },
  Bmatrix: { first: "{", last: "}" }, vmatrix: { first: "|", last: "|" }, Vmatrix: { first: "‖", last: "‖" },
  array: { columns: true }, cases: { first: "{", align: "cases" },
  aligned: { align: "aligned" }, align: { align: "aligned" }, "align*": { align: "aligned" }, split: { align: "aligned" },
  gathered: {}, gather: {}, "gather*": {}, equation: {}, "equation*": {},
};
