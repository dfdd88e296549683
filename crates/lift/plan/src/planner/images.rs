//! The parts of a process that shared images show.

use super::{Planner, whole};
use crate::groups::Run;
use crate::placement::Placed;
use crate::{ImageSpan, Method, Numa, Part, Preference, Reason};
use address_space::{AddressRange, LoadedObject};
use alloc::string::String;
use alloc::vec::Vec;

impl<'a> Planner<'a> {
    pub(super) fn image_parts(&self, run: &Run) -> Result<Vec<Part>, Reason> {
        let span = self.image_span(run.range).ok_or_else(|| match &self.placed {
            _ if self.policy.numa == Numa::Own && self.has_image(run.range) => Reason::NotInImage,
            _ if self.policy.numa == Numa::Own => Reason::NoImage { file: self.file_of(run.range) },
            Ok(Some(Placed { placement: Some(placement), .. })) if placement.preference == Preference::Bind => {
                Reason::NoImageOnNode { nodes: placement.nodes.clone(), file: self.file_of(run.range) }
            }
            Err(reason) => reason.clone(),
            Ok(_) => Reason::SharedPages,
        })?;
        let offset = span.offset + (run.range.start() - span.range.start());
        Ok(whole(run, Method::MapImage { path: span.path.clone(), offset }))
    }

    /// Returns the image that can show all of the range on huge pages of the wanted size.
    pub(super) fn image_span(&self, range: AddressRange) -> Option<&'a ImageSpan> {
        let size = self.size.bytes();
        self.process.images.iter().find(|span| {
            span.page_size == self.size
                && span.range.covers(range)
                && span.range.start().0 % size == span.offset % size
                && self.may_lie_there(span)
        })
    }

    /// The path of the object that contains a range, if the file can still be named.
    fn file_of(&self, range: AddressRange) -> Option<String> {
        let object = self.process.objects.iter().find(|object| object.extent().overlaps(range))?;
        let is_named = object.path.starts_with('/') && !object.path.ends_with(" (deleted)");
        is_named.then(|| object.path.clone())
    }

    /// True if an image shows some memory of the object that contains a range.
    fn has_image(&self, range: AddressRange) -> bool {
        let extents = self.process.objects.iter().map(LoadedObject::extent);
        extents.filter(|extent| extent.overlaps(range)).any(|extent| {
            self.process.images.iter().any(|span| span.page_size == self.size && span.range.overlaps(extent))
        })
    }

    /// True if the user leaves the nodes to the process, or has chosen the node of this copy of the image.
    fn may_lie_there(&self, span: &ImageSpan) -> bool {
        self.policy.numa == Numa::Own
            || match (span.node, &self.placed) {
                (Some(node), Ok(Some(Placed { placement: Some(placement), .. }))) => {
                    placement.preference == Preference::Bind && placement.nodes.contains(node)
                }
                _ => false,
            }
    }
}
