//! Documents that say what is so: the OpenAPI document, links, dependencies.

mod citations;
mod dependencies;
mod documents;
mod examples;
mod openapi;
mod properties;
