//! The chat template of a checkpoint: messages in, the text the model was trained on out.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, context};
use serde::Serialize;

use super::{Error, json, strftime};

/// A Jinja template with the environment that transformers gives it.
///
/// Blocks are trimmed, nothing is escaped, loops may `break` and `continue`, strings and maps have
/// their Python methods, and `raise_exception`, `strftime_now` and `tojson` exist. `documents` are always
/// none.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// The file it comes from, for errors.
    origin: String,
}

impl ChatTemplate {
    /// Takes the template's text as it is; [`ChatTemplate::check`] says whether it parses.
    pub(super) fn new(source: &str, origin: String, clock: fn() -> SystemTime) -> ChatTemplate {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_name| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_function("strftime_now", move |format: &str| strftime::strftime(format, clock()));
        ChatTemplate { environment, source: without_generation_marks(source), origin }
    }

    /// Parses the template without using it.
    pub(super) fn check(&self) -> Result<(), Error> {
        let parsed = self.environment.template_from_named_str(&self.origin, &self.source);
        parsed.map(|_template| ()).map_err(|error| self.explain(error))
    }

    /// Writes `messages` as text, after what the template says of `tools`, if there are any. `special` are the named special tokens, `bos_token` and so on;
    /// with `add_generation_prompt` the text ends where the model's answer begins.
    pub(super) fn render(
        &self,
        messages: &[impl Serialize],
        tools: &[serde_json::Value],
        add_generation_prompt: bool,
        special: &BTreeMap<String, String>,
    ) -> Result<String, Error> {
        let variables = context! {
            messages => Value::from_serialize(messages),
            add_generation_prompt,
            tools => if tools.is_empty() { Value::from(()) } else { Value::from_serialize(tools) },
            documents => Value::from(()),
            ..Value::from_serialize(special)
        };
        self.environment
            .render_named_str(&self.origin, &self.source, variables)
            .map_err(|error| self.explain(error))
    }

    /// Tells a template that refuses its messages from one that is broken.
    fn explain(&self, error: minijinja::Error) -> Error {
        let origin = self.origin.clone();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            if let Some(Raised(message)) = inner.downcast_ref() {
                return Error::MessagesRefused { origin, message: message.clone() };
            }
            cause = inner.source();
        }
        Error::ChatTemplate { origin, source: error }
    }
}

/// What a template passed to `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &str) -> Result<Value, minijinja::Error> {
    let error =
        minijinja::Error::new(ErrorKind::InvalidOperation, "the template raised an exception");
    Err(error.with_source(Raised(message.to_owned())))
}

/// Makes `{% generation %}` and `{% endgeneration %}` blocks that do nothing.
///
/// They mark the assistant's words for training and are no part of Jinja.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let Some((body, after)) = tag.split_once("%}") else {
            rest = tag;
            break;
        };
        out.push_str(&replace_generation(body));
        out.push_str("%}");
        rest = after;
    }
    out + rest
}

/// The inside of one tag, with the signs that control whitespace kept.
fn replace_generation(body: &str) -> Cow<'_, str> {
    let signs: &[char] = &['-', '+'];
    match body.trim_matches(signs).trim() {
        "generation" => body.replace("generation", "if true").into(),
        "endgeneration" => body.replace("endgeneration", "endif").into(),
        _ => body.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;
    use std::time::Duration;

    /// 26 July 2024, noon.
    fn noon() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_995_200)
    }

    fn messages(turns: &[(&str, &str)]) -> Vec<Message> {
        let message = |&(role, content): &(&str, &str)| Message {
            role: role.to_owned(),
            content: content.to_owned(),
        };
        turns.iter().map(message).collect()
    }

    fn render(source: &str, turns: &[(&str, &str)]) -> Result<String, Error> {
        let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let special = special.map(|(name, token)| (name.to_owned(), token.to_owned())).into();
        ChatTemplate::new(source, "chat_template.jinja".into(), noon).render(
            &messages(turns),
            &[],
            true,
            &special,
        )
    }

    /// Written like Llama 3's template: dates, tools, whitespace control, exceptions, loop control.
    const LLAMA3_LIKE: &str = r#"{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2020" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- raise_exception("no tools were given") }}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'note' %}
        {%- continue %}
    {%- elif message.role == 'stop' %}
        {%- break %}
    {%- elif not message.role in ['user', 'assistant'] %}
        {{- raise_exception("Unknown role " ~ message.role ~ "!") }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

    #[test]
    fn renders_a_template_like_llama_3s() {
        let turns = [
            ("system", " Be <brief> & kind. "),
            ("note", "skipped"),
            ("user", "Hi\n"),
            ("assistant", "Hello"),
            ("stop", ""),
            ("user", "never reached"),
        ];
        assert_eq!(
            render(LLAMA3_LIKE, &turns).expect("renders"),
            "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n\
             Be <brief> & kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n"
        );
    }

    #[test]
    fn says_why_a_template_refuses_messages() {
        let error = render(LLAMA3_LIKE, &[("robot", "beep")]).expect_err("raises");
        assert_eq!(
            error.to_string(),
            "the chat template in chat_template.jinja refuses these messages: Unknown role robot!"
        );
        let inside = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
        let error = render(inside, &[]).expect_err("raises");
        assert!(matches!(error, Error::MessagesRefused { message, .. } if message == "deep"));
    }

    /// Expected values were rendered by Jinja2 3.1 with transformers' settings.
    #[test]
    fn renders_as_jinja2_does() {
        let turns = [("user", "  <a>'é'</a> "), ("assistant", "x</think>\n\ny")];
        let table = [
            (
                "{% for m in messages %}\n  {{ m.role }}\n  {% endfor %}\nend\n",
                "  user\n  assistant\nend",
            ),
            (
                "{{ messages|tojson }}",
                "[{\"role\": \"user\", \"content\": \"  <a>'é'</a> \"}, {\"role\": \"assistant\", \"content\": \"x</think>\\n\\ny\"}]",
            ),
            ("{{ messages[-1].content.split('</think>')[-1].lstrip('\\n') }}", "y"),
            (
                "{{ messages[0].content.strip().upper() }}{{ 'ab'.startswith('a') }}",
                "<A>'É'</A>True",
            ),
            ("{{ messages[0].content|length }}{{ none }}{{ true }}{{ missing }}", "13NoneTrue"),
            (
                "{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index0 %}{% endfor %}{{ ns.n }}",
                "1",
            ),
            (
                "{{ tools is none }} {{ documents is defined }} {{ x is defined }}",
                "True True False",
            ),
            (
                "{% for k, v in messages[0].items() %}{{ k }}={{ v|trim }};{% endfor %}",
                "role=user;content=<a>'é'</a>;",
            ),
            (
                "{% for m in messages[::-1] %}{{ m['role'][0] }}{{ loop.last }}{% endfor %}",
                "aFalseuTrue",
            ),
            (
                "{{ messages|map(attribute='role')|join(', ') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
                "user, assistant1",
            ),
            ("{{ bos_token }}{{ messages[0].get('name', 'none') }}{{ eos_token }}", "<s>none</s>"),
            ("{{ 7 // 2 }}{{ 7 % 2 }}{{ 2 ** 3 }}{{ 'a' * 3 }}{{ 7 / 2 }}", "318aaa3.5"),
            (
                "{# note #}a{% if messages[0].name is not defined and not messages[0].tool_calls %} b{% endif %}",
                "a b",
            ),
        ];
        for (source, expected) in table {
            assert_eq!(render(source, &turns).expect(source), expected, "{source}");
        }
    }

    #[test]
    fn training_marks_do_nothing() {
        let source = "a \n{%- generation -%}\n {{ messages[0].content }} \n{%- endgeneration %}\n{% generation%}c{% endgeneration %}";
        assert_eq!(render(source, &[("user", "generation")]).expect("renders"), "agenerationc");
    }

    #[test]
    fn a_broken_template_names_its_file_and_line() {
        let template = ChatTemplate::new("fine\n{% if %}", "chat_template.jinja".into(), noon);
        let error = template.check().expect_err("does not parse");
        let (sentence, why) = (error.to_string(), "syntax error: unexpected end of block");
        let begin = format!("the chat template in chat_template.jinja cannot be used: {why}");
        assert!(sentence.starts_with(&begin), "{sentence}");
        assert!(sentence.ends_with("(in chat_template.jinja:2)"), "{sentence}");
        for source in
            ["{% if %}", "{%", "{{ messages.role.x }}", "{{ nothing() }}", "{{ 1 / 'a' }}"]
        {
            let error = render(source, &[]).expect_err(source);
            assert!(matches!(error, Error::ChatTemplate { .. }), "{source}: {error}");
        }
    }

    #[test]
    fn an_endless_recursion_ends() {
        let source = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(matches!(render(source, &[]), Err(Error::ChatTemplate { .. })));
    }
}
