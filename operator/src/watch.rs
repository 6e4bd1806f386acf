//! The operator's watches.
//!
//! * TrainJobs, Appliances and FileReaders: all of the cluster; the objects are kept in a [`Store`].
//! * Pods and Services: those that the operator created, by the label `app.kubernetes.io/managed-by`. Nothing is kept;
//!   a change of their metadata requests a reconcile of the job that owns them.
//!
//! What is guaranteed:
//!
//! * A reconcile reads the pods of its job from the API server, so memory grows with the number of jobs and not with
//!   the number of pods of the cluster.
//! * An object that can't be read is reported by an event and stops no watch. A [`Store`] keeps its last readable
//!   version.

use std::fmt::Debug;
use std::future::ready;
use std::hash::Hash;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use millrace_cluster::names::FIELD_MANAGER;
use millrace_cluster::watch::{readable_events, watch_selected};
use millrace_lifecycle::JobEvent;
use serde::de::DeserializeOwned;

use crate::events::EventPublisher;

/// Watches every object of the cluster. Returns a store that follows the stream, and a stream of objects that were
/// created or changed. An unreadable object is reported by an event; the store keeps its last readable version.
pub fn store_of<K>(client: &Client, events: EventPublisher) -> (Store<K>, BoxStream<'static, watcher::Result<K>>)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Clone + Eq + Hash + Send + Sync,
{
    let writer = Writer::default();
    let (store, cache) = (writer.as_reader(), writer.as_reader());
    let changes = readable_events(client, cache, move |unreadable| report_unreadable::<K>(unreadable, &events)).map(Ok);
    (store, reflector::reflector(writer, changes).applied_objects().boxed())
}

/// Returns a stream of readable objects that were created, changed or deleted.
pub fn changes<K>(client: &Client) -> BoxStream<'static, watcher::Result<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Clone + Send + Sync,
{
    let objects = watch_selected::<DeserializeGuard<K>>(client, watcher::Config::default()).map(Ok).touched_objects();
    objects.filter_map(|object| ready(object.map(|object| object.0.ok()).transpose())).boxed()
}

/// Returns a stream of the operator's own children of a kind that were created, changed or deleted, by their metadata.
pub fn children<K>(client: &Client) -> BoxStream<'static, watcher::Result<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let managed = watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={FIELD_MANAGER}"));
    watch_selected::<PartialObjectMeta<K>>(client, managed).map(Ok).touched_objects().boxed()
}

/// Reports an unreadable object by a line of the log and an event.
fn report_unreadable<K>(unreadable: InvalidObject, events: &EventPublisher)
where
    K: Resource + Clone,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let error = unreadable.error.clone();
    let object = DeserializeGuard::<K>(Err(unreadable));
    tracing::warn!(%kind, object = %object.name_any(), "skipping an object that can't be read: {error}");
    let event = JobEvent {
        warning: true,
        reason: "Unreadable".to_owned(),
        message: format!(
            "this operator skips the {kind}, which it can't read, perhaps because a newer version wrote it: {error}"
        ),
        ..JobEvent::default()
    };
    events.publish(object.object_ref(&K::DynamicType::default()), &event);
}
