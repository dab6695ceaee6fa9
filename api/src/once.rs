//! Equal things kept once: most pods of a cluster are made from few templates.

use std::hash::Hash;
use std::sync::Arc;

use ahash::AHashSet;

/// Different things, each once, for as long as somebody has it.
#[derive(Debug)]
pub struct Once<T> {
    all: AHashSet<Arc<T>>,
    /// With this many, those that nobody has any more are forgotten.
    most: usize,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self { all: AHashSet::new(), most: 64 }
    }
}

impl<T: Eq + Hash> Once<T> {
    /// The one that is kept in place of all that are equal.
    pub fn keep(&mut self, thing: Arc<T>) -> Arc<T> {
        if let Some(known) = self.all.get(&thing) {
            return Arc::clone(known);
        }
        if self.all.len() >= self.most {
            self.all.retain(|thing| Arc::strong_count(thing) > 1);
            self.most = 2 * self.all.len() + 64;
        }
        self.all.insert(Arc::clone(&thing));
        thing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_things_are_one_and_what_nobody_has_is_forgotten() {
        let mut once = Once::default();
        let kept: Vec<_> = (0..500).map(|i| once.keep(Arc::new(i % 100))).collect();
        assert!(kept.iter().enumerate().all(|(i, thing)| Arc::ptr_eq(thing, &kept[i % 100])));
        drop(kept);
        for i in 1000..2000 {
            once.keep(Arc::new(i));
        }
        assert!(once.all.len() <= 300, "{}", once.all.len());
        let seven = once.keep(Arc::new(7));
        assert!(Arc::ptr_eq(&seven, &once.keep(Arc::new(7))));
    }
}
