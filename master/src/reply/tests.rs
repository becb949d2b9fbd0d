//! What models write, as their own templates write it where it was said before.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

/// The file beside the published templates: a conversation with a call of a tool in it, as each renders it.
#[derive(Deserialize)]
struct Rendered {
    rendered: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>,
}

/// Templates, and what is before and after the turn in which the model called a tool.
const TEMPLATES: &[(&str, &str, &str)] = &[
    ("Qwen-Qwen3-0.6B", "<|im_start|>assistant\n", "<|im_end|>"),
    ("Qwen-Qwen2.5-7B-Instruct", "<|im_start|>assistant\n", "<|im_end|>"),
    ("Qwen3-Coder", "<|im_start|>assistant\n", "<|im_end|>"),
    ("Qwen3.5-4B", "<|im_start|>assistant\n", "<|im_end|>"),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_start|>assistant\n", "<|im_end|>"),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<|im_start|>assistant\n", "<|im_end|>"),
    ("ibm-granite-granite-4.0", "assistant<|end_of_role|>", "<|end_of_text|>"),
    ("meta-llama-Llama-3.1-8B-Instruct", "assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ("meta-llama-Llama-3.2-3B-Instruct", "assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ("meta-llama-Llama-3.3-70B-Instruct", "assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ("mistralai-Mistral-Nemo-Instruct-2407", "[/INST]", "<EOS>"),
    ("Mistral-Small-3.2-24B-Instruct-2506", "[/INST]", "<EOS>"),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "[/INST]", "<EOS>"),
    ("unsloth-mistral-Devstral-Small-2507", "[/INST]", "<EOS>"),
    ("GLM-4.6", "<|assistant|>", "<|observation|>"),
    ("GLM-4.7-Flash", "<|assistant|></think>", "<|observation|>"),
    ("deepseek-ai-DeepSeek-V3.1", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    ("deepseek-ai-DeepSeek-V3.2", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>"),
    ("MiniMax-M2", "]~b]ai\n", "[e~["),
    ("ByteDance-Seed-OSS", "<seed:bos>assistant\n", "<seed:eos>"),
    ("openai-gpt-oss-120b", "<|start|>assistant", "<|start|>functions"),
    ("google-gemma-4-31B-it", "<|turn>model\n", "<|tool_response>"),
    ("google-gemma-4-31B-it-interleaved", "<|turn>model\n", "<turn|>"),
    ("LFM2.5-8B-A1B", "<|im_start|>assistant\n", "<|im_end|>"),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ("Cohere2MoE", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ("Apertus-8B-Instruct", "<|assistant_start|>", "[{\"t\": 21}]"),
    ("poolside-Laguna-XS.2", "<assistant>\n</think>", "</assistant>"),
];

/// What other models' authors say that theirs write.
const SAID: &[&str] = &[
    // DeepSeek-V3 and R1.
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Lima\", \
     \"unit\": \"c\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    // Kimi K2.
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>\
     {\"city\": \"Lima\", \"unit\": \"c\"}<|tool_call_end|><|tool_calls_section_end|>",
    // gpt-oss, whose template writes it in another order.
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Lima\", \"unit\": \"c\"}",
];

fn tool(name: &str) -> Callable {
    let parameters = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "unit": { "type": "string" }, "days": { "type": "integer" },
        "at": { "type": ["string", "null"] }, "where": { "type": "array" },
        "zip": { "anyOf": [{ "type": "string" }, { "type": "null" }] }, "floor": { "enum": ["1", "2"] },
    } });
    Callable { name: name.to_owned(), parameters: Some(parameters) }
}

/// What comes out for text in pieces of so many characters: thoughts, text, and calls.
fn told(text: &str, size: usize, thinks: Option<&'static str>) -> (String, String, Vec<Call>) {
    let opening = Opening { thinks, channels: true, blocks: true, is_begun: false };
    let mut reply = Reply::new(Some([tool("get_weather"), tool("f")].into()), opening);
    let characters: Vec<char> = text.chars().collect();
    let (mut thought, mut said) = (String::new(), String::new());
    for piece in characters.chunks(size) {
        let shown = reply.push(&piece.iter().collect::<String>());
        thought += &shown.thought;
        said += &shown.text;
    }
    let (rest, calls) = reply.finish();
    (thought + &rest.thought, said + &rest.text, calls)
}

const SIZES: [usize; 4] = [1, 3, 7, 10_000];

#[track_caller]
fn calls_the_weather(name: &str, turn: &str) {
    for size in SIZES {
        let (thought, text, calls) = told(turn, size, None);
        assert_eq!((thought.trim(), text.trim()), ("", ""), "{name}: {turn:?}");
        let [Call { name: called, arguments }] = &calls[..] else { panic!("{name}: {turn:?}") };
        let arguments: Value = serde_json::from_str(arguments).expect("arguments are JSON");
        assert_eq!(called, "get_weather");
        assert_eq!(arguments, json!({ "city": "Lima", "unit": "c" }), "{name}");
    }
}

#[test]
fn calls_are_read_as_the_models_templates_write_them() {
    let path =
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/templates/rendered.json"));
    let all: Rendered = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for (name, before, after) in TEMPLATES {
        let text = &all.rendered[*name]["tool_round"]["text"];
        let (_, rest) = text.rsplit_once("Weather in Lima?").expect(name);
        let (_, rest) = rest.split_once(before).expect(name);
        let (turn, _) = rest.split_once(after).expect(name);
        calls_the_weather(name, turn);
    }
    SAID.iter().for_each(|turn| calls_the_weather("said", turn));
}

#[test]
fn thoughts_are_told_from_what_is_said_however_text_is_cut() {
    for (text, thinks, thought, said) in [
        ("<think>\nadd\n</think>\n\n2", None, "add", "2"),
        ("  <think></think>2 < 3", None, "", "2 < 3"),
        ("add\n</think>\n2 </think> 3", Some("</think>"), "add", "2 </think> 3"),
        ("\n a\n\nb", Some("</think>"), "a\n\nb", ""),
        ("[THINK]a [THINK] b[/THINK]c", None, "a [THINK] b", "c"),
        ("2 <think>a</think>", None, "", "2 <think>a</think>"),
        ("<|channel>thought\nadd\n<channel|>2", None, "add", "2"),
        ("<|channel>thought\n<channel|>2", None, "", "2"),
        ("<|channel>though", None, "", ""),
        ("<|channel>\na<channel|>b", None, "a", "b"),
        ("<|channel>thought\na\n<channel|>b<|channel>thought\nc<channel|>d", None, "a\n\nc", "bd"),
        ("a<channel|>b <|chan", None, "", "ab <|chan"),
        ("<thin", None, "", "<thin"),
        ("<think", None, "", "<think"),
        ("<think>a </thin", None, "a </thin", ""),
        (
            "<|channel|>analysis<|message|>a\nb<|end|><|start|>assistant<|channel|>final<|message|>é < d",
            None,
            "a\nb",
            "é < d",
        ),
        ("<|channel|>final<|message|>c<|return|>", None, "", "c"),
        ("<|channel|>anal", None, "", ""),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
            None,
            "a\n\nb",
            "",
        ),
        ("to=functions.f hi", None, "", "to=functions.f hi"),
        ("<|channel|>commentary to=functions.h<|message|>{}<|call|>", None, "", "{}"),
        ("<think>a\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n</think>b", None, "a", "b"),
        (
            "<think>a\n\n\n\n\n\n</thin\n\n\n\n\n\n\n\n\n\n\nk>",
            None,
            "a\n\n\n\n\n\n</thin\n\n\n\n\n\n\n\n\n\n\nk>",
            "",
        ),
    ] {
        for size in SIZES {
            let found = told(text, size, thinks);
            assert_eq!(found, (thought.to_owned(), said.to_owned(), vec![]), "{text:?} by {size}");
        }
    }
}

#[test]
fn calls_follow_thoughts_and_text_and_one_another() {
    let call =
        |name: &str, arguments: &str| Call { name: name.into(), arguments: arguments.into() };
    let hermes = "<think>a</think>Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\
        \n<tool_call>{\"name\": \"get_weather\", \"arguments\": {}}</tool_call>\nI will see.";
    let llama = " {\"name\": \"f\", \"parameters\": {\"a\": \"};\"}}";
    let list = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"f\", \"arguments\": {\"b\": 2}}]";
    let apertus =
        "<|inner_prefix|>hm\n<|tools_prefix|>[{\"f\": {}}]<|tools_suffix|><|inner_suffix|>b";
    let channels = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>Let me \
        see.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>";
    for size in SIZES {
        let (thought, text, calls) = told(hermes, size, None);
        assert_eq!((&*thought, &*text), ("a", "Let me see.\nI will see."));
        assert_eq!(calls, [call("f", "{\"a\":1}"), call("get_weather", "{}")]);
        assert_eq!(told(llama, size, None).2, [call("f", "{\"a\":\"};\"}")]);
        assert_eq!(told(list, size, None).2, [call("f", "{}"), call("f", "{\"b\":2}")]);
        let left = ("".to_owned(), "[]".to_owned(), vec![call("f", "{}")]);
        assert_eq!(told("<|tool_call_start|>[f()][]", size, None), left);
        let within = ("hm".to_owned(), "b".to_owned(), vec![call("f", "{}")]);
        assert_eq!(told(apertus, size, None), within);
        let all = ("a".to_owned(), "Let me see.".to_owned(), vec![call("f", "{}")]);
        assert_eq!(told(channels, size, None), all);
    }
}

#[test]
fn values_without_quotes_are_what_the_tools_schema_says() {
    let text = "<tool_call>\n<function=f>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n</parameter>\
        <parameter=at>null</parameter><parameter=zip>12345</parameter><parameter=floor>1</parameter><parameter=where>[1, 2]</parameter><parameter=more>true</parameter>\
        <parameter=other>a\n\nb</parameter></function></tool_call>";
    let (_, _, calls) = told(text, 5, None);
    let arguments: Value = serde_json::from_str(&calls[0].arguments).unwrap();
    let expected = json!({ "city": "12", "days": 12, "at": "null", "where": [1, 2], "zip": "12345", "floor": "1", "more": true, "other": "a\n\nb" });
    assert_eq!(arguments, expected);
    let pairs = "<tool_call>f\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>";
    assert_eq!(told(pairs, 4, None).2[0].arguments, "{\"days\":3}");
    let dsml = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"days\" string=\"false\">4\
        </｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    assert_eq!(told(dsml, 4, None).2[0].arguments, "{\"days\":4}");
}

/// Of Python, and of Gemma 4, whose texts are between tokens.
#[test]
fn values_that_are_not_json_are_read() {
    let python = r#"<|tool_call_start|>[f(city='it\'s "it\u00e9"', other='it's', days=-3, more=[1, 'a', True], at=None,
        where={"a": {'b': 2.5,}},
        path='C:\users\t\\', both='\ud83d\ude00\uD83D\/'), get_weather()]<|tool_call_end|>done"#;
    let gemma = "<|tool_call>call:f{city:<|\"|>a, {b}: 'c'<|\"|>,days:12,where:[<|\"|>x<|\"|>,{y:true,z:{}}],more:None}<tool_call|>\
        <|tool_call>call:get_weather{}<tool_call|>";
    let nested = |begin: &str, end: &str, levels: usize| {
        format!("<|tool_call>call:f{{a:{}1{}}}", begin.repeat(levels), end.repeat(levels))
    };
    assert_eq!(told(&nested("[", "]", 32), 7, None).2.len(), 1);
    for size in SIZES {
        let arguments = |call: &Call| -> Value { serde_json::from_str(&call.arguments).unwrap() };
        let (_, text, calls) = told(python, size, None);
        let expected = json!({ "city": "it's \"ité\"", "other": "it's", "days": -3, "more": [1, "a", true],
            "at": null, "where": { "a": { "b": 2.5 } }, "path": "C:\\users\t\\", "both": "😀\\uD83D/" });
        assert_eq!((&*text, calls.len(), arguments(&calls[0])), ("done", 2, expected));
        assert_eq!(calls[1], Call { name: "get_weather".into(), arguments: "{}".into() });
        let (_, text, calls) = told(gemma, size, None);
        let expected = json!({ "city": "a, {b}: 'c'", "days": 12, "where": ["x", { "y": true, "z": {} }],
            "more": null });
        assert_eq!((&*text, calls.len(), arguments(&calls[0])), ("", 2, expected));
        assert_eq!(calls[1].name, "get_weather");
        for deep in [nested("[", "]", 33), nested("[{x:", "}]", 17), nested("{x:", "}", 40_000)] {
            assert_eq!(told(&deep, size, None), (String::new(), deep.clone(), vec![]));
        }
    }
}

#[test]
fn what_is_no_call_is_text() {
    for text in [
        "{\"a\": 1}",
        "{ not JSON",
        "1 < 2 <tool",
        "<tool_call>none",
        "",
        "  ",
        "a {\"name\": 1}",
        "{\"name\": \"h\", \"parameters\": {}}",
        "<function=h></function>",
        "<function=f><parameter=a>1",
        "[TOOL_CALLS]h[ARGS]{}",
        "[TOOL_CALLS]f[ARGS]{",
        "<tool_call>f<arg_key>a</arg_key></tool_call>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
        "[1, 2]",
        "<|tool_call>call:h{}<tool_call|>",
        "<|tool_call>call:f{a:<|\"|>b",
        "<|tool_call>call:f{a:b}",
        "<|tool_call_start|>[h(a=1)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=1, b)]",
        "<|tool_call_start|>[f(a='\\u12",
        "<|tool_call_start|>[]",
        "<|tool_call_start|>[f(a=1, b), f(c=2)]",
        "<|tool_call_start|>[f(=1)]",
        "<|tool_call_start|>[f(a='''b''')]",
        "<|tool_call_start|>[f(a='He said 'yes', then left', b='c')]",
        "<|tool_call>call:f{a:1,,b:2}",
        "<|tools_prefix|>[{\"f\": 1}]<|tools_suffix|>",
        "<|START_ACTION|>[{\"tool_name\": \"h\", \"parameters\": {}}]<|END_ACTION|>",
        "<|tools_prefix|>[{\"f\": {}, \"g\": {}}]<|tools_suffix|>",
        "[f(a=1)]",
        "{\"f\": {}}",
    ] {
        for size in SIZES {
            assert_eq!(
                told(text, size, None),
                (String::new(), text.to_owned(), vec![]),
                "{text:?}"
            );
        }
    }
}

#[test]
fn a_prompt_may_begin_the_thoughts() {
    assert_eq!(opened("<|im_start|>assistant\n<think>\n"), Some("</think>"));
    assert_eq!(opened("[/INST][THINK]"), Some("[/THINK]"));
    assert_eq!(opened("<|im_start|>assistant\n<think>\n\n</think>\n\n"), None);
    assert_eq!(opened("<|turn>model\n<|channel>thought\n"), Some("<channel|>"));
    assert_eq!(opened("<|turn>model\n<|channel>thought\n<channel|>"), None);
    assert_eq!(opened(""), None);
}

#[test]
fn tokens_mark_what_they_are_part_of() {
    assert_eq!(marks("</think>"), Some(Marked::Thoughts));
    assert_eq!(marks("[TOOL_CALLS]"), Some(Marked::Calls));
    assert_eq!(marks("[ARGS]"), Some(Marked::Calls));
    assert_eq!(marks("<|channel|>"), Some(Marked::Channel));
    assert_eq!(marks("<|end|>"), Some(Marked::InChannels));
    assert_eq!(marks("<|channel>"), Some(Marked::Thoughts));
    assert_eq!((marks("<|channel"), marks("<")), (None, None));
    assert_eq!(marks("<|\"|>"), Some(Marked::Calls));
    assert_eq!((marks("<|im_end|>"), marks("think")), (None, None));
}

#[test]
fn who_has_no_tokens_for_blocks_of_thoughts_writes_of_them() {
    let text = "Gemma 4 writes <|channel>thought and <channel|>.";
    for (blocks, expected) in [(false, text), (true, "Gemma 4 writes ")] {
        let mut reply = Reply::new(None, Opening { blocks, ..Opening::default() });
        let shown = reply.push(text);
        assert_eq!(
            shown.text + &reply.finish().0.text,
            expected.to_owned() + if blocks { "." } else { "" }
        );
    }
}

#[test]
fn who_has_no_tokens_for_channels_writes_in_none() {
    let text = "<|channel|> is a token of others.";
    let mut reply = Reply::new(None, Opening::default());
    let shown = reply.push(text);
    assert_eq!(
        (shown.text + &reply.finish().0.text, shown.thought),
        (text.to_owned(), String::new())
    );
}
