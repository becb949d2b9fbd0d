//! The chat template of a checkpoint: messages in, the text the model was trained on out.
//!
//! A template is a program that somebody else wrote: what it may take is bounded here (steps, stack, text),
//! and its memory and time by a process of its own (`apart`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::SystemTime;

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, context};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::error::Bound;
use super::{Error, json, python, strftime};

/// Longest source; real ones stay under 100 KB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Instructions of one rendering: a thousand for each of the most messages that a request may have.
const MAX_STEPS: u64 = 10_000_000;
/// Stack of a rendering: the engine's own bound of 500 levels takes a part of it.
const STACK_BYTES: usize = 64 << 20;
/// Longest text where the context gives no shorter one.
pub(super) const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// What a template makes a text of.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Conversation<'a> {
    pub(super) messages: Cow<'a, [Json]>,
    /// What the model is told of, if there are any.
    pub(super) tools: Cow<'a, [Json]>,
    /// What else the template is told, by name: whether to think, for instance.
    pub(super) variables: Cow<'a, BTreeMap<String, Json>>,
    /// Whether the text ends where the model's answer begins.
    pub(super) add_generation_prompt: bool,
    /// The named special tokens, `bos_token` and so on.
    pub(super) special: Cow<'a, BTreeMap<String, String>>,
    /// Most bytes of the text.
    pub(super) most_bytes: usize,
}

/// A Jinja template with the environment that transformers gives it.
///
/// Blocks are trimmed, nothing is escaped, loops may `break` and `continue`, strings and maps have
/// their Python methods, and `raise_exception`, `strftime_now` and `tojson` exist. `documents` are always
/// none.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    pub(super) source: String,
    /// The file it comes from, for errors.
    pub(super) origin: String,
}

impl ChatTemplate {
    /// Takes the template's text as it is; [`ChatTemplate::check`] says whether it parses.
    pub(super) fn new(source: &str, origin: String, clock: fn() -> SystemTime) -> ChatTemplate {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_auto_escape_callback(|_name| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        python::like_python(&mut environment);
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_function("strftime_now", move |format: &str| strftime::strftime(format, clock()));
        ChatTemplate { environment, source: without_generation_marks(source), origin }
    }

    /// Lets it take so many steps.
    pub(super) fn with_steps(mut self, steps: u64) -> ChatTemplate {
        self.environment.set_fuel(Some(steps));
        self
    }

    /// Most steps of a rendering.
    pub(super) fn steps(&self) -> u64 {
        self.environment.fuel().unwrap_or(MAX_STEPS)
    }

    /// Parses the template without using it.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.parsed().map(|_template| ())
    }

    fn parsed(&self) -> Result<minijinja::Template<'_, '_>, Error> {
        if self.source.len() > MAX_SOURCE_BYTES {
            return Err(self.exceeds(Bound::Source(MAX_SOURCE_BYTES)));
        }
        let parse = || self.environment.template_from_named_str(&self.origin, &self.source);
        self.guarded(|| parse().map_err(|error| self.explain(&error)))
    }

    /// Calls the template engine; what it panics at is an error like any other, because a template that somebody else
    /// wrote must not end the process.
    fn guarded<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        // The environment is only read.
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(self.gave_up()))
    }

    fn gave_up(&self) -> Error {
        let reason = "the template engine gave up".to_owned();
        Error::ChatTemplate { origin: self.origin.clone(), reason }
    }

    /// Writes a conversation as text, on a thread with a stack that is large enough.
    pub(super) fn render(&self, conversation: &Conversation<'_>) -> Result<String, Error> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
            let rendering = thread.spawn_scoped(scope, || self.render_on_this_stack(conversation));
            let rendering = rendering.map_err(|source| Error::NoRenderer { source })?;
            rendering.join().unwrap_or_else(|_| Err(self.gave_up()))
        })
    }

    fn render_on_this_stack(&self, conversation: &Conversation<'_>) -> Result<String, Error> {
        let Conversation { messages, tools, variables, add_generation_prompt, special, most_bytes } =
            conversation;
        // A loop over it is refused, unless it is compared with the other kind.
        let none = |name: &str| match self.compares_with_none(name) {
            true => Value::from(()),
            false => python::nothing(),
        };
        let special = special.iter().map(|(name, token)| (name, Json::from(token.as_str())));
        // Of two that have one name the later.
        let others: BTreeMap<&String, Json> =
            special.chain(variables.iter().map(|(name, value)| (name, value.clone()))).collect();
        let variables = context! {
            messages => Value::from_serialize(messages),
            add_generation_prompt,
            tools => if tools.is_empty() { none("tools") } else { Value::from_serialize(tools) },
            documents => none("documents"),
            ..Value::from_serialize(others)
        };
        let mut output = Output { bytes: Vec::new(), most: *most_bytes, is_full: false };
        let template = self.parsed()?;
        self.guarded(move || {
            let rendered = template.render_captured_to(variables, &mut output).map(drop);
            match rendered {
                Err(_) if output.is_full => Err(self.exceeds(Bound::Output(*most_bytes))),
                Err(error) => Err(self.explain(&error)),
                Ok(()) => Ok(String::from_utf8(output.bytes).expect("templates write strings")),
            }
        })
    }

    /// Whether the template compares a variable with `none`, which is equal to itself alone.
    fn compares_with_none(&self, name: &str) -> bool {
        let source: String = self.source.split_whitespace().collect();
        let compared = ["==", "!="].map(|sign| format!("{name}{sign}none"));
        let source = source.to_ascii_lowercase();
        compared.iter().any(|compared| source.contains(compared))
    }

    fn exceeds(&self, bound: Bound) -> Error {
        Error::TemplateExceeds { origin: self.origin.clone(), bound }
    }

    /// Tells a template that refuses its messages from one that is broken.
    fn explain(&self, error: &minijinja::Error) -> Error {
        let origin = self.origin.clone();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = cause {
            if let Some(Raised(message)) = inner.downcast_ref() {
                return Error::MessagesRefused { origin, message: message.clone() };
            }
            let engine = inner.downcast_ref::<minijinja::Error>();
            if engine.is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
                return self.exceeds(Bound::Steps(self.steps()));
            }
            cause = inner.source();
        }
        Error::ChatTemplate { origin, reason: error.to_string() }
    }
}

/// Takes what a template writes, and no more than may be.
struct Output {
    bytes: Vec<u8>,
    most: usize,
    is_full: bool,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    /// 26 July 2024, noon.
    fn noon() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_995_200)
    }

    fn render_within(
        source: &str,
        turns: &[(&str, &str)],
        most_bytes: usize,
    ) -> Result<String, Error> {
        let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let special = special.map(|(name, token)| (name.to_owned(), token.to_owned())).into();
        let message = |&(role, content): &(&str, &str)| json!({"role": role, "content": content});
        let conversation = Conversation {
            messages: turns.iter().map(message).collect(),
            tools: Cow::Borrowed(&[]),
            variables: Cow::Owned(BTreeMap::new()),
            add_generation_prompt: true,
            special: Cow::Owned(special),
            most_bytes,
        };
        ChatTemplate::new(source, "chat_template.jinja".into(), noon).render(&conversation)
    }

    fn render(source: &str, turns: &[(&str, &str)]) -> Result<String, Error> {
        render_within(source, turns, MAX_OUTPUT_BYTES)
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
            ("{{ tools == none }} {{ documents != None }} {{ tools is none }}", "True False True"),
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
        let deep = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(matches!(render(&deep, &[]), Err(Error::ChatTemplate { .. })));
    }

    #[test]
    fn an_endless_loop_ends() {
        let source =
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
        let error = render(source, &[]).expect_err("endless");
        assert_eq!(
            error.to_string(),
            "the chat template in chat_template.jinja exceeds the 10000000 steps that it may take"
        );
    }

    #[test]
    fn an_endless_text_ends() {
        let source = "{% for i in range(100000) %}0123456789{% endfor %}";
        assert_eq!(render_within(source, &[], 1_000_000).expect("just fits").len(), 1_000_000);
        let error = render_within(source, &[], 999_999).expect_err("one byte too many");
        let bound = Bound::Output(999_999);
        assert!(matches!(error, Error::TemplateExceeds { bound: found, .. } if found == bound));
    }

    #[test]
    fn an_endless_source_is_not_parsed() {
        let error = render(&"a".repeat(MAX_SOURCE_BYTES + 1), &[]).expect_err("too long");
        assert!(matches!(error, Error::TemplateExceeds { bound: Bound::Source(_), .. }), "{error}");
    }
}
