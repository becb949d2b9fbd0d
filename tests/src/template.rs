//! A chat template that somebody made to end, to fill or to hold up whoever renders it.

/// Does what the first message says: one of [`WISHES`]; what else it says comes out between two control tokens.
pub const HOSTILE: &str = "\
{%- macro again() %}{{ again() }}{% endmacro -%}
{%- set wish = messages[0].content -%}
{%- set ns = namespace(a=[1], b=[1], s='a' * 1000000) -%}
{%- if wish == 'loop' -%}
{%- for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor -%}
{%- elif wish == 'text' -%}
{%- for i in range(100000) %}{{ ns.s }}{% endfor -%}
{%- elif wish == 'memory' -%}
{%- for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor -%}
{%- elif wish == 'recursion' -%}
{{- again() -}}
{%- elif wish == 'stack' -%}
{%- for i in range(20) %}{% for j in range(50000) %}{% set ns.a = [ns.a] %}{% endfor %}{% endfor -%}
{%- elif wish == 'time' -%}
{%- for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor -%}
{{- ns.a == ns.b -}}
{%- endif -%}
{{- '<|im_start|>' ~ wish ~ '<|im_end|>' -}}
";

/// What it does without end, unless somebody ends it.
pub const WISHES: [&str; 6] = ["loop", "text", "memory", "recursion", "stack", "time"];
