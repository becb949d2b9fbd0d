//! Steps on their way from a stream into a stage.
use cake_proto::{Assembler, Failure, Incoming, wire};
use tonic::{Status, Streaming};

use crate::runtime::{self, Runtime, Ticket};

/// Feeds the stage from one stream until its sender says goodbye, or the stage is gone.
pub(crate) async fn take_steps(
    runtime: &Runtime,
    mut frames: Streaming<wire::StepFrame>,
    mut ticket: Ticket,
) -> Result<(), Status> {
    let mut assembler = Assembler::new(ticket.about.row_width, ticket.about.max_rows);
    loop {
        let frame = tokio::select! {
            frame = frames.message() => frame?,
            () = ticket.ended() => return Err(runtime.not_loaded().into()),
        };
        let Some(frame) = frame else { return Ok(()) };
        let number = frame.step;
        if !frame.announcement {
            ticket.progress.frame();
        }
        let Some(Incoming::Step(step)) = assembler.push(frame)? else { continue };
        match runtime.submit(&ticket, step).await {
            Ok(()) => {}
            Err(error @ runtime::Error::Generation { .. }) => {
                let routes = runtime.routes(ticket.about.generation, None)?;
                routes.fail(number, Failure::other(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
}
