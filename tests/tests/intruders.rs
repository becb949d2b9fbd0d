//! Who is in and wants more: a member that gives orders.
use cake_identity::Security;
use cake_proto::{Client, Tag, connect, wire};
use cake_tests::{Cluster, Master, golden};
use tokio::runtime::Runtime;
use tonic::{Code, Status};

/// Everything that only a master may ask for, and what came of it.
async fn orders(client: &mut Client) -> Vec<(&'static str, Option<Status>)> {
    let frames = || tokio_stream::iter([wire::StepFrame::default()]);
    let pushed = tokio_stream::iter([wire::PushFrame::default()]);
    let shut_out = wire::ShutOutRequest { worker_ids: vec!["0".repeat(32)] };
    vec![
        ("hold", client.hold(wire::HoldRequest::default()).await.err()),
        ("probe_compute", client.probe_compute(wire::ProbeComputeRequest::default()).await.err()),
        ("probe_link", client.probe_link(wire::ProbeLinkRequest::default()).await.err()),
        ("probe_peer", client.probe_peer(wire::ProbePeerRequest::default()).await.err()),
        ("query", client.query(wire::QueryRequest::default()).await.err()),
        ("push", client.push(pushed).await.err()),
        ("load", client.load(wire::LoadRequest::default()).await.err()),
        ("route", client.route(wire::RouteRequest::default()).await.err()),
        ("steps", client.steps(frames()).await.err()),
        ("shut_out", client.shut_out(shut_out).await.err()),
        (
            "request_certificate",
            client.request_certificate(wire::CertificateRequest::default()).await.err(),
        ),
        ("renew_certificate", client.renew_certificate(wire::RenewRequest::default()).await.err()),
        ("release", client.release(wire::ReleaseRequest::default()).await.err()),
    ]
}

#[test]
fn a_member_that_gives_orders_is_refused_even_with_the_masters_lease() {
    let golden = golden("llama-sharded");
    let cluster = Cluster::new(&["a", "b"]);
    let member = Security::mutual(&cluster.workers[0].identity()).expect("usable");
    let at = cluster.workers[1].address.as_str();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let dial = async |who: &Security, tag| connect(who, at, None, tag).await.expect("let in").0;
        let security = cluster.security();
        let hold = wire::HoldRequest { master_name: "desk".to_owned(), ..Default::default() };
        let held = dial(&security, Tag::default()).await.hold(hold).await.expect("the master may");
        let mut held = held.into_inner();
        let lease = held.message().await.expect("an event").expect("granted").lease;
        assert!(!lease.is_empty());
        for tag in [Tag::default(), Tag::lease(&lease)] {
            let mut client = dial(&member, tag).await;
            client.describe(wire::DescribeRequest {}).await.expect("members see each other");
            for (order, refusal) in orders(&mut client).await {
                let refusal = refusal.unwrap_or_else(|| panic!("{order} was done"));
                assert_eq!(refusal.code(), Code::PermissionDenied, "{order}: {refusal}");
                assert!(refusal.message().ends_with("is not the master"), "{order}: {refusal}");
            }
        }
        // With the same lease the master may.
        let mut client = dial(&security, Tag::lease(&lease)).await;
        client.query(wire::QueryRequest::default()).await.expect("its holder");
    });
    let answer = cluster.master.answer(&golden, &[("a", 0, 6), ("b", 6, 12)], &[]);
    assert_eq!(answer.output_ids, Master::alone().answer(&golden, &[], &[]).output_ids);
    assert!(answer.stages.iter().all(|(_, _, direct)| *direct), "nobody is shut out: {answer:?}");
}
