//! What clients send to `serve`, and what a model writes for them.
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use cake_master::api::hostile;
use cake_master::grammar::{Grammars, bounds};
use cake_master::text::StopStrings;
use serde_json::{Value, json};

/// Of so many schemas that are within bounds one is compiled: that takes a hundred times as long as to look at one.
const COMPILED: u64 = 8;
/// Tokens of each answer to a schema.
const STEPS: usize = 8;
/// Longest text that is looked through for stop strings, piece by piece, and longest string.
const MAX_TEXT: usize = 400;
const MAX_STOP: usize = 40;

/// A token for each byte of ASCII, some of several, and one that ends.
static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    let mut tokens: Vec<Option<Vec<u8>>> = (0..128u8).map(|byte| Some(vec![byte])).collect();
    let more = ["\"name\"", "{\"", "\", \"", "123", "true", "é", "\": "];
    tokens.extend(more.map(|token| Some(token.as_bytes().to_vec())));
    tokens.push(None);
    Grammars::new(&tokens, &[tokens.len() as u32 - 1]).expect("a tokenizer")
});

/// A schema: looked at, one in so many compiled, and asked what may come next a few times.
pub(super) fn schema(bytes: &[u8]) {
    let Ok(schema) = serde_json::from_slice::<Value>(bytes) else { return };
    let mut digest = DefaultHasher::new();
    bytes.hash(&mut digest);
    if bounds::check(&schema).is_err() || !digest.finish().is_multiple_of(COMPILED) {
        return;
    }
    let Ok(mut grammar) = GRAMMARS.compile(schema) else { return };
    let mut scores = vec![0.0; 136];
    for step in 0..STEPS {
        scores.fill(0.0);
        if grammar.mask(&mut scores).is_err() {
            return; // It takes too much: the answer would break off.
        }
        let allowed: Vec<u32> = (0..136).filter(|id| scores[*id as usize] == 0.0).collect();
        assert!(!allowed.is_empty(), "nothing may come, and it is not over");
        let chosen = allowed[usize::from(bytes[step % bytes.len()]) % allowed.len()];
        grammar.take(chosen).expect("it is one of those that may come");
        if grammar.is_over() {
            return;
        }
    }
}

pub(super) fn schemas() -> Vec<Vec<u8>> {
    LazyLock::force(&GRAMMARS); // What is made once is nothing that an input takes.
    let all = [
        json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "maxLength": 8, "pattern": "^[a-z]{2,5}$" },
                "age": { "type": "integer", "minimum": 0, "maximum": 150, "multipleOf": 5 },
                "kind": { "enum": ["cat", "dog", 3, null] },
                "tags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
            },
            "required": ["name", "age"],
            "additionalProperties": false,
        }),
        json!({
            "$ref": "#/$defs/tree",
            "$defs": { "tree": {
                "type": "object",
                "properties": { "children": { "type": "array", "items": { "$ref": "#/$defs/tree" } } },
                "required": ["children"],
            } },
        }),
        json!({ "allOf": [
            { "anyOf": [{ "type": "array", "minItems": 2 }, { "type": "string", "format": "date" }] },
            { "oneOf": [{ "type": "array", "prefixItems": [{}, true] }, { "type": "number" }] },
        ] }),
        json!({ "patternProperties": { "^a": { "const": [1, "x"] } }, "minProperties": 1 }),
        json!({ "type": ["number", "null"], "exclusiveMinimum": -1.5, "multipleOf": 0.01 }),
    ];
    all.iter().map(|schema| schema.to_string().into_bytes()).collect()
}

/// The bodies of requests.
pub(super) fn bodies() -> Vec<Vec<u8>> {
    let schema = json!({ "type": "object", "properties": { "a": { "$ref": "#" } } });
    let tool = json!({ "type": "function", "function": {
        "name": "f", "description": "does", "parameters": schema, "strict": true,
    } });
    let call = json!({ "id": "1", "function": { "name": "f", "arguments": "{\"a\": 1}" } });
    let all = [
        json!({
            "model": "m", "messages": [
                { "role": "developer", "content": [{ "type": "text", "text": "Be short." }] },
                { "role": "user", "content": "Hello" },
                { "role": "assistant", "content": null, "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "1", "content": "2", "name": "f" },
            ],
            "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
            "temperature": 0.5, "stop": ["a", "b"], "n": 2, "stream": true,
            "stream_options": { "include_usage": true }, "logit_bias": { "5": -100 },
        }),
        json!({
            "messages": [{ "role": "user", "content": "Hello" }], "max_completion_tokens": 5,
            "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } },
            "logprobs": true, "top_logprobs": 3, "seed": 7,
            "tools": [tool], "tool_choice": { "type": "function", "function": { "name": "f" } },
        }),
        json!({ "prompt": [[1, 2], [3]], "max_tokens": 4, "echo": true, "stop": "x", "top_p": 0.5 }),
        json!({ "prompt": "Once", "logprobs": 2, "best_of": 1, "suffix": "" }),
        json!({
            "messages": [{ "role": "assistant", "content": "It" }], "continue_final_message": true,
            "add_generation_prompt": false, "return_token_strs": true, "add_special_tokens": false,
        }),
        json!({ "tokens": [1, 2, 70_000] }),
        json!({ "input": ["one", "two"], "encoding_format": "base64", "model": "m" }),
        json!({
            "model": "m", "instructions": "Be short.", "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "Hello" }] },
                { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "Hm." }] },
                { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": 1}" },
                { "type": "function_call_output", "call_id": "1", "output": "2" },
            ],
            "tools": [{ "type": "function", "name": "f", "parameters": schema }],
            "tool_choice": { "type": "function", "name": "f" }, "store": false, "max_output_tokens": 5,
            "text": { "format": { "type": "json_object" } }, "reasoning": { "effort": "low" },
        }),
    ];
    all.iter().map(|body| body.to_string().into_bytes()).collect()
}

/// What a model writes: the first byte says in pieces of how many characters.
pub(super) fn tool_calls(bytes: &[u8]) {
    let Some((size, text)) = bytes.split_first() else { return };
    hostile::tool_calls(text, usize::from(*size % 16));
}

pub(super) fn written() -> Vec<Vec<u8>> {
    let all = [
        "\x03Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
            <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        "\x01 {\"name\": \"f\", \"parameters\": {\"a\": \"};\"}}; {\"name\": \"g\", \"parameters\": \"x\"}",
        "\x07<tool_call>{\"name\": \"h\", \"arguments\": {}}</tool_call>",
        "\x02<think>\na </think\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
        "\x05<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f \
            <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>b<|return|>",
        "\x03[THINK]a[/THINK][TOOL_CALLS]f[CALL_ID]1[ARGS]{\"a\": 1}[TOOL_CALLS][{\"name\": \"g\", \"arguments\": {}}]",
        "\x04<tool_call>f<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call><minimax:tool_call><invoke \
            name=\"f\"><parameter name=\"a\">1</parameter></invoke></minimax:tool_call>",
        "\x03<|channel>thought\na<channel|>b<|tool_call>call:f{a:<|\"|>b<|\"|>,c:[1,{d:true}]}<tool_call|><|channel>c",
        "\x02<|tool_call_start|>[f(a='it\\'s', b={'c': None}), g()]<|tool_call_end|>",
        "\x05<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {}}]<|END_ACTION|>",
        "\x04<|inner_prefix|>a<|tools_prefix|>[{\"f\": {}}]<|tools_suffix|><|inner_suffix|>b",
        "\x06<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
    ];
    all.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Lines: the first byte says how many of them are stop strings, what follows them is text. It is looked through in one
/// piece and character by character.
pub(super) fn stop_strings(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let all = String::from_utf8_lossy(rest);
    let mut lines: Vec<&str> = all.splitn(usize::from(*count % 8) + 1, '\n').collect();
    let text: String = lines.pop().unwrap_or_default().chars().take(MAX_TEXT).collect();
    let stops: Vec<String> =
        lines.iter().map(|line| line.chars().take(MAX_STOP).collect()).collect();
    let shown = |pieces: &mut dyn Iterator<Item = String>| {
        let mut scan = StopStrings::new(stops.clone());
        let (mut shown, mut stopped) = (String::new(), false);
        for piece in pieces {
            let found = scan.push(&piece);
            shown += &found.emit;
            stopped = found.stopped;
        }
        (shown + &scan.finish(), stopped)
    };
    let (whole, stopped) = shown(&mut std::iter::once(text.clone()));
    let pieces = shown(&mut text.chars().map(String::from));
    let is_there = |stop: &String| !stop.is_empty() && text.contains(stop);
    assert_eq!(stopped, stops.iter().any(is_there));
    assert!(text.starts_with(&whole) && (stopped || whole == text));
    assert!(text.is_empty() || pieces == (whole, stopped), "the pieces matter");
}

pub(super) fn stops() -> Vec<Vec<u8>> {
    ["\x02END\nab\nsome text ababEND more", "\x03\né\naab\naaab", "\x01aaaaab\naaaaaaaaaaab"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}
