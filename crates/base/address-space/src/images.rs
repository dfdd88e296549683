//! Finds copies of objects among the objects of a process.

use crate::{AddressSpace, LoadedObject, Mapping, ObjectRole, PageSize};
use alloc::vec::Vec;

/// Drops images: copies of an object's file that show its read-only ranges in its own place. An image is the one of two
/// overlapping objects that has no mapping of its file at the other's writable segments. An image can also be apart from the
/// object of the same file: a copy that a killed lift has left, or a mapping that the program has made.
pub fn drop_images(objects: &mut Vec<LoadedObject>, space: &AddressSpace, base_page: PageSize) {
    let has_data = |object: &LoadedObject| {
        let mut writable = object.image.segments.iter().filter(|segment| segment.protection.write);
        writable.any(|segment| {
            let pages = segment.memory.widened(base_page).shifted(object.bias);
            let offset = segment.offset & !(base_page.bytes() - 1);
            // The mapping must show this part of the file: another lift may have left a copy at these addresses.
            let is_there =
                |m: &Mapping| m.range.start().0.wrapping_sub(m.offset) == pages.start().0.wrapping_sub(offset);
            let is_of_file = |m: &Mapping| !m.shared && m.path() == Some(object.path.as_str());
            space.overlapping(pages).iter().any(|m| is_of_file(m) && is_there(m))
        })
    };
    let is_real = |object: &LoadedObject| object.role == ObjectRole::Executable || has_data(object);
    let real: Vec<bool> = objects.iter().map(is_real).collect();
    let image_of_another = |index: usize| {
        let object = &objects[index];
        let has_writable = object.image.segments.iter().any(|segment| segment.protection.write);
        let is_same_file = |other: &LoadedObject| other.path == object.path && other.image == object.image;
        let shows =
            |other: &LoadedObject| other.extent().overlaps(object.extent()) || has_writable && is_same_file(other);
        !real[index] && (0..objects.len()).any(|other| real[other] && shows(&objects[other]))
    };
    let images: Vec<bool> = (0..objects.len()).map(image_of_another).collect();
    let mut image = images.into_iter();
    objects.retain(|_| !image.next().unwrap_or(false));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElfImage;

    /// As a lift leaves it that is killed while it puts the text back.
    #[test]
    fn a_copy_of_a_file_without_its_data_is_no_object() {
        let path = std::env::current_exe().unwrap();
        let image = ElfImage::parse(&*std::fs::read(&path).unwrap()).unwrap();
        let object = |role, bias| LoadedObject {
            path: path.display().to_string(),
            link: None,
            role,
            bias,
            image: image.clone(),
        };
        let program = object(ObjectRole::Executable, 0x5500_0000_0000);
        let other = LoadedObject { path: "/another".into(), ..object(ObjectRole::SharedObject, 0x7fcc_0000_0000) };
        let mut objects = vec![program.clone(), object(ObjectRole::SharedObject, 0x7fcd_0000_0000), other.clone()];
        drop_images(&mut objects, &AddressSpace::parse("").unwrap(), PageSize::new(4096).unwrap());
        assert_eq!(objects, [program, other]);
    }
}
