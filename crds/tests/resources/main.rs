//! Tests of the custom resources: the definitions, the rules in process, and both on a real API server.

mod apiserver;
mod cases;
mod definitions;
mod reading;
mod reference;
mod rules;
mod schemas;
