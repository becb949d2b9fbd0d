//! `POST /v1/chat/completions`.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;
use std::sync::Arc;

use axum::Extension;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::Plan;
use super::bodies::Room;
use super::ending::{CONTINUES, ending};
use super::error::ApiError;
use super::measure::{MAX_TEXT_VALUES, parse_text};
use super::params::Terms;
use super::prompts::Talk;
use super::respond::{Sending, Shape, Whole, respond};
use super::telling::Telling;
use super::tools::{ToolCall, ToolChoice};
use super::wire::{ChatLogprob, ChatLogprobs, ChatMessage, ChatRequest, Content, TokenLogprob};
use super::wire::{Common, Prompt, ResponseFormat, Tool};
use super::{Body, Ready, Served, params};
use crate::grammar::{Grammar, Grammars, bounds};
use crate::reply::{Callable, Opening, Reply, Shown};
use crate::scheduler::{Scope, Token};
use crate::text::{ChatPrompt, Detokenizer, Ending, Text};

/// Most tools of a request, as OpenAI has it.
const MAX_TOOLS: usize = 128;
/// Longest word that a template is told.
const MAX_WORD_BYTES: usize = 64;
/// Longest name of a tool: OpenAI's are half as long.
const MAX_TOOL_NAME_BYTES: usize = 128;
/// Who may speak. Templates know other roles as well, but to them anybody who may write a role could give
/// any header that the model was trained on.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

pub(super) async fn create(
    Ready(served): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let prepared = Asked::new(request)?.prepare(&served, scope, room).await?;
    let Prepared { plan, sending, reply, most_calls, logprobs } = prepared;
    let chat = Chat { logprobs, begin: Telling::new(reply, most_calls), begun: HashMap::new() };
    respond(served, plan, sending, chat).await
}

/// A chat whose prompt is read: nothing is left to do but to begin it.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) sending: Sending,
    /// What every answer begins as.
    pub(super) reply: Reply,
    /// Most calls of an answer; more are let go.
    pub(super) most_calls: usize,
    pub(super) logprobs: bool,
}

/// What a request asks for, as far as that can be known without a model.
pub(super) struct Asked {
    messages: Vec<Value>,
    /// Whether the last message is the prompt as it is, without a template.
    raw: bool,
    tools: Vec<Tool>,
    /// What the template is told beside these.
    variables: BTreeMap<String, Value>,
    ending: Ending,
    choice: ToolChoice,
    held_to: Option<HeldTo>,
    /// Most calls of an answer.
    most_calls: usize,
    logprobs: bool,
    top_logprobs: u64,
    common: Common,
}

impl Asked {
    pub(super) fn new(request: ChatRequest) -> Result<Self, ApiError> {
        let ChatRequest { messages, logprobs, top_logprobs, common, .. } = request;
        common.unmet.check()?;
        let kwargs = request.chat_template_kwargs.unwrap_or_default();
        let variables = variables(kwargs, request.enable_thinking, request.reasoning_effort)?;
        let tools = request.tools.unwrap_or_default();
        check_tools(&tools)?;
        let choice = ToolChoice::new(&tools, request.tool_choice.as_ref())?;
        let logprobs = logprobs.unwrap_or(false);
        if top_logprobs.is_some() && !logprobs {
            let expected = "logprobs to be true beside it";
            return Err(ApiError::parameter("top_logprobs", "given", expected));
        }
        if messages.is_empty() {
            return Err(ApiError::parameter("messages", "empty", "at least one"));
        }
        let (adds, continues) = (request.add_generation_prompt, request.continue_final_message);
        let ending = ending(adds, continues, messages.last())?;
        let mut room = MAX_TEXT_VALUES;
        let messages = messages.into_iter().map(|one| message(one, &mut room));
        let messages = messages.collect::<Result<_, _>>()?;
        let held_to = held_to(&tools, &choice, request.response_format)?;
        if ending == Ending::Content && held_to.is_some() {
            // It would be held to it from here on, without what was said before.
            let found = "beside a format, or a call that must be made";
            return Err(ApiError::parameter(CONTINUES, found, "neither"));
        }
        let most_calls = match request.parallel_tool_calls {
            Some(false) => 1,
            _ => usize::MAX,
        };
        let top_logprobs = top_logprobs.unwrap_or(0);
        Ok(Self {
            messages,
            raw: false,
            tools,
            variables,
            ending,
            choice,
            held_to,
            most_calls,
            logprobs,
            top_logprobs,
            common,
        })
    }

    /// The model that is asked for, if one is named.
    pub(super) fn model(&self) -> Option<&str> {
        self.common.model.as_deref()
    }

    /// The same of the last message's text as it is, without a template.
    pub(super) fn raw(self) -> Self {
        Self { raw: true, ..self }
    }

    /// Whether the model is to be told of tools that it may call as it likes.
    pub(super) fn offers_tools(&self) -> bool {
        !self.tools.is_empty() && self.choice == ToolChoice::Auto
    }

    /// The prompt as token ids.
    pub(super) async fn prompt(&mut self, served: &Arc<Served>) -> Result<ChatPrompt, ApiError> {
        if self.raw {
            let content = self.messages.pop().map(|mut last| last["content"].take());
            let text = match content {
                Some(Value::String(text)) => text,
                _ => String::new(), // There is a message, and its content is a text.
            };
            let ids = served.ids(Prompt::Texts(vec![text])).await?.pop().unwrap_or_default();
            return Ok(ChatPrompt { ids, thinks: None });
        }
        served.read_chat(self.talk(), Text::encode_chat_within).await
    }

    /// The prompt as the template writes it.
    pub(super) async fn text(&mut self, served: &Arc<Served>) -> Result<String, ApiError> {
        served.read_chat(self.talk(), Text::render_chat_within).await
    }

    /// What the template is told; it can be asked for once.
    fn talk(&mut self) -> Talk {
        let tools = match self.choice {
            ToolChoice::None => Vec::new(),
            _ => self.tools.iter().map(|tool| json!(tool)).collect(),
        };
        let (messages, variables) = (take(&mut self.messages), take(&mut self.variables));
        Talk { messages, tools, variables, ending: self.ending }
    }

    /// Reads the prompt and checks all else; `room` is what the request takes until then.
    pub(super) async fn prepare(
        mut self,
        served: &Arc<Served>,
        scope: Scope,
        room: Room,
    ) -> Result<Prepared, ApiError> {
        let ChatPrompt { ids, thinks } = self.prompt(served).await?;
        let Self { tools, ending, choice, held_to, most_calls, logprobs, top_logprobs, .. } = self;
        let common = self.common;
        let prompts = vec![ids];
        let grammar = match held_to {
            Some(held_to) => Some(held_to.grammar(served).await?),
            None => None,
        };
        drop(room); // Of what was sent, ids and a grammar are left.
        let sending = Sending::new(&common, &prompts);
        let is_held = grammar.is_some();
        let terms = Terms {
            scope,
            top_logprobs,
            scores_prompt: false,
            least_tokens: 1,
            default_max_tokens: None,
            grammar,
        };
        let mut plan = params::plan(served, &prompts, common, terms)?;
        // An answer that is held to a format is no call.
        let looks_for_calls = match choice {
            ToolChoice::None => false,
            ToolChoice::Auto => !is_held,
            ToolChoice::Required(_) => true,
        };
        let goes_on = ending == Ending::Content;
        if goes_on {
            plan.after = Detokenizer::tail(&prompts[0]).to_vec();
        }
        plan.marks = served.text.marks(looks_for_calls).clone();
        let tools = looks_for_calls.then(|| tools.into_iter().map(callable).collect());
        // What is held to a format is that from its first token on.
        let opening = match is_held {
            true => Opening::default(),
            false => Opening { thinks, channels: served.text.has_channels(), is_begun: goes_on },
        };
        Ok(Prepared { plan, sending, reply: Reply::new(tools, opening), most_calls, logprobs })
    }
}

/// What a template is told beside messages and tools: flags, numbers and single words, as none of them is masked where it
/// has a control token in it.
fn variables(
    kwargs: BTreeMap<String, Value>,
    enable_thinking: Option<bool>,
    reasoning_effort: Option<String>,
) -> Result<BTreeMap<String, Value>, ApiError> {
    let is_word = |text: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        text.len() <= MAX_WORD_BYTES && text.chars().all(is_plain)
    };
    let is_plain = |value: &Value| match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => is_word(text),
        Value::Array(_) | Value::Object(_) => false,
    };
    let expected = || format!("flags, numbers and words of at most {MAX_WORD_BYTES} letters");
    if let Some((name, value)) = kwargs.iter().find(|(_, value)| !is_plain(value)) {
        let found = format!("{} {}", quoted(name), quoted(&value.to_string()));
        return Err(ApiError::parameter("chat_template_kwargs", found, expected()));
    }
    if let Some(effort) = reasoning_effort.as_ref().filter(|effort| !is_word(effort)) {
        return Err(ApiError::parameter("reasoning_effort", quoted(effort), expected()));
    }
    let thinking = enable_thinking.map(|on| ("enable_thinking", json!(on)));
    let effort = reasoning_effort.map(|effort| ("reasoning_effort", json!(effort)));
    let named = thinking.into_iter().chain(effort);
    let named = named.map(|(name, value)| (name.to_owned(), value));
    Ok(named.chain(kwargs).collect())
}

/// What may be called of a tool.
fn callable(tool: Tool) -> Callable {
    Callable { name: tool.function.name, parameters: tool.function.parameters }
}

/// Looks whether tools are functions, not too many of them, and named as tools are.
fn check_tools(tools: &[Tool]) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::parameter("tools", tools.len(), format!("at most {MAX_TOOLS}")));
    }
    for Tool { kind, function } in tools {
        if kind != "function" {
            let found = format!("one of type {}", quoted(kind));
            return Err(ApiError::parameter("tools", found, "tools of type \"function\""));
        }
        let (name, bytes) = (&function.name, function.name.len());
        if !(1..=MAX_TOOL_NAME_BYTES).contains(&bytes) || name.chars().any(char::is_control) {
            let expected = format!("a name of 1 to {MAX_TOOL_NAME_BYTES} bytes");
            return Err(ApiError::parameter(
                "tools",
                format!("one named {}", quoted(name)),
                expected,
            ));
        }
    }
    Ok(())
}

/// The beginning of what a client sent, in quotes: as many bytes as a name may have.
fn quoted(text: &str) -> String {
    format!("{:?}", &text[..text.floor_char_boundary(MAX_TOOL_NAME_BYTES)])
}

/// What an answer is held to.
struct HeldTo {
    schema: Value,
    /// The parameter that asks for it.
    param: &'static str,
}

/// What the answer is held to, if to anything: a call that must be made, or a format. Its bounds are looked at before
/// anything is made of it.
fn held_to(
    tools: &[Tool],
    choice: &ToolChoice,
    format: Option<ResponseFormat>,
) -> Result<Option<HeldTo>, ApiError> {
    let held_to = match (choice.schema(tools), format) {
        (Some(schema), _) => Some(HeldTo { schema, param: "tools" }),
        (None, Some(format)) => {
            format.schema()?.map(|schema| HeldTo { schema, param: "response_format" })
        }
        (None, None) => None,
    };
    if let Some(HeldTo { schema, param }) = &held_to {
        bounds::check(schema)
            .map_err(|refusal| ApiError::Schema { param, error: refusal.into() })?;
    }
    Ok(held_to)
}

impl HeldTo {
    async fn grammar(self, served: &Served) -> Result<Grammar, ApiError> {
        // They are made of all tokens when they are needed first.
        let grammars = tokio::task::block_in_place(|| served.grammars().cloned())?;
        let compiled = grammars.json_schema(self.schema).await;
        compiled.map_err(|error| ApiError::Schema { param: self.param, error })
    }
}

impl ResponseFormat {
    /// The schema that it asks for, if for any.
    fn schema(self) -> Result<Option<Value>, ApiError> {
        let Self { kind, json_schema } = self;
        match kind.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(Grammars::any_object())),
            "json_schema" => match json_schema.and_then(|format| format.schema) {
                Some(schema) => Ok(Some(schema)),
                None => {
                    let expected = "an object with a \"schema\"";
                    Err(ApiError::parameter("response_format.json_schema", "none", expected))
                }
            },
            other => {
                let expected = "\"text\", \"json_object\" or \"json_schema\"";
                Err(ApiError::parameter("response_format.type", json!(other), expected))
            }
        }
    }
}

/// A message as templates take it: its parts joined, arguments of calls as objects, which take of `room`.
fn message(message: ChatMessage, room: &mut usize) -> Result<Value, ApiError> {
    if !ROLES.contains(&message.role.as_str()) {
        let expected = format!("one of {}", ROLES.join(", "));
        return Err(ApiError::parameter("messages.role", json!(message.role), expected));
    }
    let content = match message.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let text = parts.into_iter().map(|part| match (part.kind.as_str(), part.text) {
                ("text", Some(text)) => Ok(text),
                (kind, _) => {
                    let found = format!("a part of type {kind:?}");
                    Err(ApiError::parameter("messages", found, "parts of type \"text\""))
                }
            });
            text.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
    };
    // What was the system's role is called the developer's now; templates know the former.
    let role = match message.role.as_str() {
        "developer" => "system".to_owned(),
        _ => message.role,
    };
    let mut fields = json!({ "role": role });
    fields["content"] = Value::String(content); // Moved: it may be long.
    if let Some(mut calls) = message.tool_calls {
        for call in &mut calls {
            let function = call.get_mut("function");
            let Some(arguments) = function.and_then(|function| function.get_mut("arguments"))
            else {
                let expected = "calls of functions with arguments";
                return Err(ApiError::parameter("messages.tool_calls", call, expected));
            };
            let parsed = arguments.as_str().map(|text| parse_text(text, room)).transpose()?;
            if let Some(parsed) = parsed.flatten() {
                *arguments = parsed;
            }
        }
        fields["tool_calls"] = json!(calls);
    }
    for (name, value) in [
        ("reasoning_content", message.reasoning_content),
        ("tool_call_id", message.tool_call_id),
        ("name", message.name),
    ] {
        if let Some(value) = value {
            fields[name] = json!(value);
        }
    }
    Ok(fields)
}

/// Log-probabilities of tokens and of the alternatives to them.
pub(super) fn logprobs(served: &Served, tokens: &[Token]) -> Vec<ChatLogprob> {
    let entry = |id, logprob| {
        let token = served.token_text(id);
        TokenLogprob { bytes: token.clone().into_bytes(), token, logprob }
    };
    let of_token = |token: &Token| ChatLogprob {
        token: entry(token.id, token.logprob),
        top_logprobs: token.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect(),
    };
    tokens.iter().map(of_token).collect()
}

struct Chat {
    logprobs: bool,
    /// What every answer begins as.
    begin: Telling,
    /// How far each answer of a stream is told.
    begun: HashMap<usize, Telling>,
}

impl Chat {
    fn logprobs(&self, served: &Served, tokens: &[Token]) -> Option<ChatLogprobs> {
        self.logprobs.then(|| ChatLogprobs { content: logprobs(served, tokens) })
    }
}

impl Shape for Chat {
    const OBJECTS: (&'static str, &'static str) = ("chat.completion", "chat.completion.chunk");
    const PREFIX: &'static str = "chatcmpl";

    fn opening(&self, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        Some(choice(index, &delta, Value::Null, None))
    }

    fn piece(
        &mut self,
        served: &Served,
        index: usize,
        text: &str,
        tokens: &[Token],
    ) -> Option<Value> {
        let telling = self.begun.entry(index).or_insert_with(|| self.begin.clone());
        let (shown, told) = telling.push(text, tokens)?;
        let logprobs = self.logprobs(served, &told);
        Some(choice(index, &delta(&shown), json!(logprobs), None))
    }

    fn end(&mut self, served: &Served, index: usize, reason: &str) -> Vec<Value> {
        let telling = self.begun.remove(&index);
        let (rest, held, calls) = telling.map(Telling::finish).unwrap_or_default();
        let calls: Vec<ToolCall> = calls.into_iter().map(ToolCall::from).collect();
        let mut choices = Vec::new();
        if rest != Shown::default() || (calls.is_empty() && !held.is_empty()) {
            let logprobs = self.logprobs(served, &held);
            choices.push(choice(index, &delta(&rest), json!(logprobs), None));
        }
        if !calls.is_empty() {
            let numbered = calls.iter().enumerate().map(|(number, call)| {
                let mut call = json!(call);
                call["index"] = json!(number);
                call
            });
            let calls: Vec<Value> = numbered.collect();
            choices.push(choice(index, &json!({ "tool_calls": calls }), Value::Null, None));
        }
        choices.push(choice(index, &json!({}), Value::Null, Some(finish(reason, &calls))));
        choices
    }

    fn whole(&mut self, served: &Served, index: usize, answer: &Whole) -> Value {
        let mut telling = self.begin.clone();
        let (shown, _) = telling.push(&answer.text, &[]).unwrap_or_default();
        let (rest, _, calls) = telling.finish();
        let calls: Vec<ToolCall> = calls.into_iter().map(ToolCall::from).collect();
        let (content, thought) = (shown.text + &rest.text, shown.thought + &rest.thought);
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !thought.is_empty() {
            message["reasoning_content"] = json!(thought);
        }
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
            if content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        let logprobs = self.logprobs(served, &answer.tokens);
        let reason = finish(answer.why.reason, &calls);
        json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": reason })
    }
}

/// What a piece of a stream adds to a message.
fn delta(Shown { thought, text }: &Shown) -> Value {
    match thought.is_empty() {
        true => json!({ "content": text }),
        false if text.is_empty() => json!({ "reasoning_content": thought }),
        false => json!({ "reasoning_content": thought, "content": text }),
    }
}

/// A choice of a stream.
fn choice(index: usize, delta: &Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason })
}

/// Why an answer ended, in OpenAI's words.
fn finish<'a>(reason: &'a str, calls: &[ToolCall]) -> &'a str {
    if calls.is_empty() { reason } else { "tool_calls" }
}
