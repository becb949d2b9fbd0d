//! What a model thinks, says and calls as the items of a response, and as the events of a stream that build them.

use serde_json::{Value, json};

use crate::api::tools::ToolCall;
use crate::api::wire::ChatLogprob;

/// How whole an item is: `in_progress`, `completed` or `incomplete`.
type Status = &'static str;

/// The items of a response, which follow each other.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Those that are whole, or will not become so.
    pub(super) items: Vec<Value>,
    open: Option<Open>,
}

/// What comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Thought,
    Text,
}

/// An item that has not ended. It has one part.
#[derive(Debug)]
struct Open {
    kind: Kind,
    id: String,
    text: String,
    logprobs: Vec<ChatLogprob>,
}

impl Output {
    /// More of this kind, in an item of its own if the one before was of another.
    pub(super) fn say(&mut self, kind: Kind, text: &str, logprobs: Vec<ChatLogprob>) -> Vec<Value> {
        let is_open = self.open.as_ref().is_some_and(|open| open.kind == kind);
        let mut events = if is_open { Vec::new() } else { self.close("completed") };
        let index = self.items.len();
        let begin =
            || Open { kind, id: new_id(kind.prefix()), text: String::new(), logprobs: Vec::new() };
        let open = self.open.get_or_insert_with(begin);
        if !is_open {
            events.push(added(index, &open.item("in_progress", Vec::new())));
            events.push(open.event(
                "response.content_part.added",
                index,
                json!({ "part": open.part() }),
            ));
        }
        if !text.is_empty() || !logprobs.is_empty() {
            let mut more = json!({ "delta": text });
            if kind == Kind::Text {
                more["logprobs"] = json!(logprobs);
            }
            events.push(open.event(kind.events().0, index, more));
            open.text.push_str(text);
            open.logprobs.extend(logprobs);
        }
        events
    }

    /// Whether nothing was said, whatever was thought.
    pub(super) fn is_silent(&self) -> bool {
        let is_text = |open: &Open| open.kind == Kind::Text;
        let is_message = |item: &Value| item["type"] == "message";
        !self.open.as_ref().is_some_and(is_text) && !self.items.iter().any(is_message)
    }

    /// Ends the item that is open, if one is.
    pub(super) fn close(&mut self, status: Status) -> Vec<Value> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (index, part) = (self.items.len(), open.part());
        let mut whole = json!({ "text": open.text });
        if open.kind == Kind::Text {
            whole["logprobs"] = part["logprobs"].clone();
        }
        let item = open.item(status, vec![part.clone()]);
        let events = vec![
            open.event(open.kind.events().1, index, whole),
            open.event("response.content_part.done", index, json!({ "part": part })),
            done(index, &item),
        ];
        self.items.push(item);
        events
    }

    /// A call, which is an item by itself.
    pub(super) fn call(&mut self, call: ToolCall, status: Status) -> Vec<Value> {
        let mut events = self.close("completed");
        let (index, id) = (self.items.len(), new_id("fc"));
        let (name, arguments) = (call.function.name, call.function.arguments);
        let item = |arguments: &str, status: Status| {
            json!({
                "type": "function_call",
                "id": id,
                "call_id": call.id,
                "name": name,
                "arguments": arguments,
                "status": status,
            })
        };
        let event = |kind: &str, field: &str| {
            let mut event = json!({ "type": kind, "item_id": id, "output_index": index });
            event[field] = json!(arguments);
            event
        };
        let mut all = event("response.function_call_arguments.done", "arguments");
        all["name"] = json!(name);
        let whole = item(&arguments, status);
        events.extend([
            added(index, &item("", "in_progress")),
            event("response.function_call_arguments.delta", "delta"),
            all,
            done(index, &whole),
        ]);
        self.items.push(whole);
        events
    }
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Thought => "rs",
            Self::Text => "msg",
        }
    }

    /// The events of a piece, and of the whole text.
    fn events(self) -> (&'static str, &'static str) {
        match self {
            Self::Thought => ("response.reasoning_text.delta", "response.reasoning_text.done"),
            Self::Text => ("response.output_text.delta", "response.output_text.done"),
        }
    }
}

impl Open {
    fn part(&self) -> Value {
        match self.kind {
            Kind::Thought => json!({ "type": "reasoning_text", "text": self.text }),
            Kind::Text => json!({
                "type": "output_text",
                "text": self.text,
                "annotations": [],
                "logprobs": self.logprobs,
            }),
        }
    }

    fn item(&self, status: Status, content: Vec<Value>) -> Value {
        let mut item = match self.kind {
            Kind::Thought => json!({ "type": "reasoning", "id": self.id, "summary": [] }),
            Kind::Text => json!({ "type": "message", "id": self.id, "role": "assistant" }),
        };
        item["content"] = Value::Array(content);
        item["status"] = json!(status);
        item
    }

    /// An event about the part, with `more` in it.
    fn event(&self, kind: &str, index: usize, more: Value) -> Value {
        let mut event = json!({
            "type": kind,
            "item_id": self.id,
            "output_index": index,
            "content_index": 0,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            event[name] = value.clone();
        }
        event
    }
}

fn added(index: usize, item: &Value) -> Value {
    json!({ "type": "response.output_item.added", "output_index": index, "item": item })
}

fn done(index: usize, item: &Value) -> Value {
    json!({ "type": "response.output_item.done", "output_index": index, "item": item })
}

fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", cake_identity::random_token())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tools::Called;

    /// Types of events without what all have in common, and the items that they are about.
    fn kinds(events: &[Value]) -> Vec<(&str, u64)> {
        let kinds = events.iter().map(|event| {
            let (name, index) = (event["type"].as_str().unwrap(), event["output_index"].as_u64());
            (name.strip_prefix("response.").unwrap(), index.unwrap())
        });
        kinds.collect()
    }

    #[test]
    fn items_follow_each_other_and_each_ends() {
        let mut output = Output::default();
        let first = output.say(Kind::Thought, "H", Vec::new());
        let begun = ["output_item.added", "content_part.added", "reasoning_text.delta"];
        assert_eq!(kinds(&first), begun.map(|kind| (kind, 0)));
        assert_eq!(
            kinds(&output.say(Kind::Thought, "m", Vec::new())),
            [("reasoning_text.delta", 0)]
        );
        let next = output.say(Kind::Text, "Yes", Vec::new());
        let expected = [
            ("reasoning_text.done", 0),
            ("content_part.done", 0),
            ("output_item.done", 0),
            ("output_item.added", 1),
            ("content_part.added", 1),
            ("output_text.delta", 1),
        ];
        assert_eq!(kinds(&next), expected);
        assert_eq!((&next[0]["text"], &next[1]["part"]["text"]), (&json!("Hm"), &json!("Hm")));
        // An item is the same one in all that is said of it.
        assert_eq!(next[3]["item"]["id"], next[5]["item_id"]);
        assert_ne!(next[3]["item"]["id"], next[2]["item"]["id"]);
        let function = Called { name: "f".into(), arguments: "{\"a\":1}".into() };
        let call = ToolCall { id: "call_1".into(), kind: "function", function };
        let called = output.call(call, "completed");
        let expected = [
            ("output_text.done", 1),
            ("content_part.done", 1),
            ("output_item.done", 1),
            ("output_item.added", 2),
            ("function_call_arguments.delta", 2),
            ("function_call_arguments.done", 2),
            ("output_item.done", 2),
        ];
        assert_eq!(kinds(&called), expected);
        assert_eq!(
            (&called[3]["item"]["arguments"], &called[6]["item"]["arguments"]),
            (&json!(""), &json!("{\"a\":1}"))
        );
        assert_eq!(output.close("completed"), Vec::<Value>::new());
        let types: Vec<&str> =
            output.items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["reasoning", "message", "function_call"]);
        assert!(output.items.iter().all(|item| item["status"] == "completed"));
    }

    #[test]
    fn what_is_cut_off_says_so() {
        let mut output = Output::default();
        output.say(Kind::Text, "", Vec::new());
        let ended = output.close("incomplete");
        assert_eq!(ended[2]["item"]["status"], "incomplete");
        assert_eq!(output.items[0]["content"][0]["text"], "");
    }
}
