//! Documents that say what is so: the OpenAPI document, links, dependencies.

mod dependencies;
mod documents;
mod openapi;
mod properties;
