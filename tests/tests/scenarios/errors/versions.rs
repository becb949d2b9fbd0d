//! A worker of another protocol version.
use std::net::SocketAddr;
use std::pin::Pin;

use cake_proto::wire::worker_server::{Worker, WorkerServer};
use cake_proto::{PROTOCOL, wire};
use cake_tests::master::path;
use cake_tests::{Master, TestWorker, golden};
use tokio_stream::Stream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

use super::assert_says;

/// A worker that only says who it is: cake 9.8.7, of the next protocol.
struct NextVersion;

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

fn misunderstood<T>() -> Answer<T> {
    Err(Status::unimplemented("the next version has another call for this"))
}

#[tonic::async_trait]
impl Worker for NextVersion {
    type HoldStream = Events<wire::HoldEvent>;
    type PushStream = Events<wire::PushEvent>;
    type LoadStream = Events<wire::LoadEvent>;
    type StepsStream = Events<wire::StepFrame>;

    async fn describe(&self, _: Request<wire::DescribeRequest>) -> Answer<wire::Description> {
        Ok(Response::new(wire::Description {
            name: "tomorrow".to_owned(),
            version: "9.8.7".to_owned(),
            protocol: PROTOCOL + 1,
            ..wire::Description::default()
        }))
    }

    async fn hold(&self, _: Request<wire::HoldRequest>) -> Answer<Self::HoldStream> {
        misunderstood()
    }

    async fn probe_compute(
        &self,
        _: Request<wire::ProbeComputeRequest>,
    ) -> Answer<wire::ProbeComputeReply> {
        misunderstood()
    }

    async fn probe_link(&self, _: Request<wire::ProbeLinkRequest>) -> Answer<wire::ProbeLinkReply> {
        misunderstood()
    }

    async fn probe_peer(&self, _: Request<wire::ProbePeerRequest>) -> Answer<wire::ProbePeerReply> {
        misunderstood()
    }

    async fn query(&self, _: Request<wire::QueryRequest>) -> Answer<wire::QueryReply> {
        misunderstood()
    }

    async fn push(&self, _: Request<Streaming<wire::PushFrame>>) -> Answer<Self::PushStream> {
        misunderstood()
    }

    async fn load(&self, _: Request<wire::LoadRequest>) -> Answer<Self::LoadStream> {
        misunderstood()
    }

    async fn shut_out(&self, _: Request<wire::ShutOutRequest>) -> Answer<wire::ShutOutReply> {
        misunderstood()
    }

    async fn request_certificate(
        &self,
        _: Request<wire::CertificateRequest>,
    ) -> Answer<wire::CertificateSigningRequest> {
        misunderstood()
    }

    async fn renew_certificate(&self, _: Request<wire::RenewRequest>) -> Answer<wire::RenewReply> {
        misunderstood()
    }

    async fn route(&self, _: Request<wire::RouteRequest>) -> Answer<wire::RouteReply> {
        misunderstood()
    }

    async fn steps(&self, _: Request<Streaming<wire::StepFrame>>) -> Answer<Self::StepsStream> {
        misunderstood()
    }

    async fn forward(&self, _: Request<Streaming<wire::StepFrame>>) -> Answer<wire::ForwardReply> {
        misunderstood()
    }

    async fn progress(&self, _: Request<wire::ProgressRequest>) -> Answer<wire::ProgressReply> {
        misunderstood()
    }

    async fn release(&self, _: Request<wire::ReleaseRequest>) -> Answer<wire::ReleaseReply> {
        misunderstood()
    }
}

/// Serves [`NextVersion`] for as long as the runtime lives.
fn start(runtime: &tokio::runtime::Runtime) -> SocketAddr {
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound just above");
        let serve = tonic::transport::Server::builder()
            .add_service(WorkerServer::new(NextVersion))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serve);
        address
    })
}

#[test]
fn a_worker_of_another_version_is_told_apart_with_both_numbers() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let address = start(&runtime).to_string();
    let llama = path(&golden("llama").path);
    let master = Master::at([&address]);
    let sentence = master.run(&["run", &llama, "hello", "--json"]).refusal();
    let numbers = [PROTOCOL.to_string(), (PROTOCOL + 1).to_string()];
    assert_says(&sentence, &[&address, "9.8.7", &numbers[0], &numbers[1], "same version"]);
    let doctor = master.run(&["doctor"]);
    assert_says(&doctor.stdout, &["FAIL", "version", "same version"]);
    doctor.refusal();
}

#[test]
fn a_master_of_another_version_is_refused_by_a_worker() {
    let worker = TestWorker::new("a");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let status = runtime.block_on(async {
        let endpoint = format!("http://{}", worker.address);
        let mut client = wire::worker_client::WorkerClient::connect(endpoint).await.expect("there");
        let hold = wire::HoldRequest { master_name: "tomorrow".to_owned(), ..Default::default() };
        let mut request = Request::new(hold);
        let number = (PROTOCOL + 1).to_string().parse().expect("digits");
        request.metadata_mut().insert(cake_proto::client::PROTOCOL_KEY, number);
        client.hold(request).await.expect_err("refused")
    });
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert_says(status.message(), &["protocol", &(PROTOCOL + 1).to_string(), "same version"]);
    let llama = golden("llama");
    assert_eq!(Master::over([&worker]).answer(&llama, &[], &[]).output_ids, llama.greedy_ids);
}
