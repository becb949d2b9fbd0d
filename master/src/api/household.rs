//! What the owner of the devices alone may do: `/api/members`, where workers are let in, named, freed and shut out, and
//! `/api/what-if`, which plans as if there were one more.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use cake_identity::{MOST_NAME_BYTES, NameError, WorkerEntry, is_worker_name};
use schemars::Schema;
use schemars::transform::Transform;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::door::Place;
use super::error::ApiError;
use super::extent::{Length, Span};
use super::guard;
use super::measure::{Bound, Measured};
use super::not_done::NotDone;
use super::routes::Routes;
use super::server::Server;
use super::{Body, Name, Ready};
use crate::chronicle::Kind;
use crate::cluster;
use crate::deployment::{door, master_name};
use crate::invitation::{Invitation, MOST_USES, TTL, open_door};
use crate::membership::{self, Membership};
use crate::roll::{self, Known};
use crate::wonder::Foreseen;

/// How long a token is good for, and for how many workers, unless it is said.
const USUAL: (u64, u32) = (3600, 1);
const TTL_SECONDS: Span<u64> = Span { low: TTL.0.as_secs(), high: TTL.1.as_secs() };
const USES: Span<u32> = Span { low: 1, high: MOST_USES };
/// Bytes that a worker that does not exist may offer: from what hardly runs a process to what no machine has.
const IMAGINED: Span<u64> = Span { low: 1 << 20, high: 1 << 50 };
/// Names that `is_worker_name` takes, but for how long they may be.
const WORKER_NAME: &str = "^[A-Za-z0-9._-]*$";
/// What it is called.
const NOBODY: &str = "another-device";

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Invite {
    #[schemars(transform = { TTL_SECONDS })]
    ttl_seconds: Option<u64>,
    #[schemars(transform = { USES })]
    uses: Option<u32>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rename {
    #[schemars(transform = name_of_worker)]
    name: String,
}

fn name_of_worker(schema: &mut Schema) {
    schema.insert("pattern".to_owned(), json!(WORKER_NAME));
    Length { least: 1, most: MOST_NAME_BYTES }.transform(schema);
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    drain: bool,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhatIf {
    #[schemars(transform = { IMAGINED })]
    bytes: u64,
    /// Of several that are loaded, the model that is planned with.
    model: Option<String>,
}

/// What it would change, and for which model.
#[derive(Debug, Serialize)]
pub(super) struct WouldChange {
    model: String,
    #[serde(flatten)]
    foreseen: Foreseen,
}

macro_rules! small {
    ($($body:ty),*) => {
        $(impl Measured for $body {
            const BOUNDS: &'static [Bound] = &[];
        })*
    };
}
small!(Invite, Rename, Drain, Nothing, WhatIf);

impl Invite {
    /// How long a token is good for, and for how many workers.
    pub(super) fn terms(&self) -> Result<(Duration, u32), ApiError> {
        let ttl_seconds = TTL_SECONDS.check("ttl_seconds", self.ttl_seconds)?.unwrap_or(USUAL.0);
        let uses = USES.check("uses", self.uses)?.unwrap_or(USUAL.1);
        Ok((Duration::from_secs(ttl_seconds), uses))
    }
}

impl Rename {
    /// What the worker is to be called.
    pub(super) fn name(self) -> Result<String, ApiError> {
        let Self { name } = self;
        if [cluster::LOCAL, NOBODY].contains(&name.as_str()) {
            return Err(NotDone::Name(NameError::Taken { name }).into());
        }
        if !is_worker_name(&name) {
            return Err(NotDone::Name(NameError::Unfit { name }).into());
        }
        Ok(name)
    }
}

impl WhatIf {
    pub(super) fn bytes(&self) -> Result<u64, ApiError> {
        IMAGINED.check("bytes", Some(self.bytes)).map(|_| self.bytes)
    }
}

/// What the owner alone may ask for.
pub(super) fn owned() -> Routes {
    Routes::default()
        .post("/api/members/invite", invite)
        .post("/api/members/{id}/rename", rename)
        .post("/api/members/{id}/drain", drain)
        .post("/api/members/{id}/revoke", revoke)
        .post("/api/what-if", what_if)
}

/// Who joined, for the owner; others hear that they are not.
#[derive(Default, Serialize)]
pub(super) struct Members {
    owner: bool,
    /// Whether there is an authority that others could join.
    authority: bool,
    members: Vec<Known>,
}

pub(super) async fn members(
    State(server): State<Arc<Server>>,
    Extension(place): Extension<Arc<Place>>,
    headers: HeaderMap,
) -> Result<Json<Members>, ApiError> {
    if !guard::is_owner(!server.keys.is_empty(), place.is_of_this_machine(), &headers) {
        return Ok(Json(Members::default()));
    }
    let membership = household(&server)?;
    let Some(authority) = membership.authority() else {
        return Ok(Json(Members { owner: true, ..Members::default() }));
    };
    let book = block_in_place(|| authority.book().read()).map_err(failed)?;
    let members = roll::call(membership, book.workers, &master_name()).await;
    Ok(Json(Members { owner: true, authority: true, members }))
}

/// A token, as text, as a QR code and as what is typed on the device.
async fn invite(
    State(server): State<Arc<Server>>,
    Body(asked, _room): Body<Invite>,
) -> Result<Json<Value>, ApiError> {
    let terms = asked.terms()?;
    let membership = household(&server)?;
    let authority =
        membership.authority().ok_or_else(Membership::missing).map_err(NotDone::from)?;
    let own = door::own_address();
    let made = block_in_place(|| Invitation::make(authority, terms, open_door(membership), own));
    let made = made.map_err(NotDone::from)?;
    let (command, of_phones) = (made.command(), made.command_of_phones());
    let code = made.code();
    Ok(Json(json!({
        "invitation": made, "command": command, "command_of_phones": of_phones, "code": code,
    })))
}

async fn rename(
    State(server): State<Arc<Server>>,
    Name(worker_id): Name,
    Body(asked, _room): Body<Rename>,
) -> Result<Json<WorkerEntry>, ApiError> {
    let name = asked.name()?;
    let entry = in_book(&server, |book| book.rename(&worker_id, &name))?;
    server.board.chronicle.add(Kind::Worker, format!("{name} is the name of a worker from now on"));
    Ok(Json(entry))
}

async fn revoke(
    State(server): State<Arc<Server>>,
    Name(worker_id): Name,
    Body(Nothing {}, _room): Body<Nothing>,
) -> Result<Json<WorkerEntry>, ApiError> {
    let entry = in_book(&server, |book| book.revoke(&worker_id))?;
    server.board.chronicle.add(Kind::Worker, format!("{} is shut out by its owner", entry.name));
    Ok(Json(entry))
}

async fn drain(
    State(server): State<Arc<Server>>,
    Name(worker_id): Name,
    Body(Drain { drain }, _room): Body<Drain>,
) -> Result<Json<Value>, ApiError> {
    let membership = household(&server)?;
    let members = server.board.snapshot().snapshot.members;
    // One that is away may have layers again when it is back.
    let member = members.iter().find(|member| member.worker_id == worker_id);
    if member.is_none() && (drain || !membership.is_draining(&worker_id)) {
        return Err(NotDone::Nobody { worker_id }.into());
    }
    let name = member.map_or(&worker_id, |member| &member.name);
    block_in_place(|| membership.drain(&worker_id, drain)).map_err(NotDone::from)?;
    let words = match drain {
        true => format!("{name} is to be free: its layers go elsewhere"),
        false => format!("{name} may have layers again"),
    };
    server.board.chronicle.add(Kind::Worker, words);
    Ok(Json(json!({ "worker_id": worker_id, "draining": drain })))
}

async fn what_if(
    _ready: Ready,
    State(server): State<Arc<Server>>,
    Body(asked, _room): Body<WhatIf>,
) -> Result<Json<WouldChange>, ApiError> {
    let bytes = asked.bytes()?;
    // Their names alone: a model that is kept in hand is in use.
    let loaded: Vec<String> = server.desk.loaded().iter().map(|one| one.name.clone()).collect();
    if let Some(name) = asked.model.as_ref().filter(|_| !loaded.is_empty())
        && !loaded.contains(name)
    {
        let found: String = name.chars().take(64).collect();
        let expected = format!("one that is loaded: {}", loaded.join(", "));
        return Err(ApiError::parameter("model", format!("{found:?}"), expected));
    }
    let planner = server.board.asked(asked.model.as_deref()).filter(|_| !loaded.is_empty());
    let Some(planner) = planner else {
        let (phase, reason) = server.board.phase();
        return Err(ApiError::NotReady { phase, reason });
    };
    let foreseen = planner.questions.ask(NOBODY.to_owned(), bytes).await;
    let foreseen = foreseen.map_err(NotDone::from)?;
    Ok(Json(WouldChange { model: planner.model(), foreseen }))
}

/// Who joined, and how they are spoken to; not before the cluster is looked for.
fn household(server: &Server) -> Result<&Membership, ApiError> {
    server.membership.get().ok_or_else(|| {
        let (phase, reason) = server.board.phase();
        ApiError::NotReady { phase, reason }
    })
}

/// Changes the list of those that joined. Waits for a disk.
fn in_book(
    server: &Server,
    change: impl FnOnce(&mut cake_identity::Book) -> Result<WorkerEntry, NameError>,
) -> Result<WorkerEntry, ApiError> {
    let membership = household(server)?;
    let authority =
        membership.authority().ok_or_else(Membership::missing).map_err(NotDone::from)?;
    let changed = block_in_place(|| authority.book().update(change)).map_err(failed)?;
    membership.news.notify_one();
    Ok(changed.map_err(NotDone::from)?)
}

fn failed(error: cake_identity::Error) -> ApiError {
    NotDone::from(membership::Error::from(error)).into()
}
