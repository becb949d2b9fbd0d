//! Routes that can be counted: a router does not tell which it has.

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};

use super::Server;

/// Routes, and the method and path of each, in order.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<Arc<Server>>,
    all: Vec<(&'static str, &'static str)>,
}

impl Routes {
    pub(super) fn get<H, T>(self, path: &'static str, answer: H) -> Self
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.with(MethodFilter::GET, "get", path, answer)
    }

    pub(super) fn head<H, T>(self, path: &'static str, answer: H) -> Self
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.with(MethodFilter::HEAD, "head", path, answer)
    }

    pub(super) fn post<H, T>(self, path: &'static str, answer: H) -> Self
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.with(MethodFilter::POST, "post", path, answer)
    }

    pub(super) fn delete<H, T>(self, path: &'static str, answer: H) -> Self
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.with(MethodFilter::DELETE, "delete", path, answer)
    }

    fn with<H, T>(
        mut self,
        filter: MethodFilter,
        method: &'static str,
        path: &'static str,
        answer: H,
    ) -> Self
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.all.push((method, path));
        Self { router: self.router.route(path, on(filter, answer)), ..self }
    }

    /// The method, in small letters, and the path of each.
    #[cfg(test)]
    pub(super) fn all(&self) -> &[(&'static str, &'static str)] {
        &self.all
    }

    pub(super) fn router(self) -> Router<Arc<Server>> {
        self.router
    }
}
