"""scikit-learn: a pipeline, cross-validation, a search, and a saved model."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import pickle

    import joblib
    import numpy as np
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.datasets import load_iris
    from sklearn.decomposition import PCA
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score
    from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, target = load_iris(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(features, target, random_state=0)
    model = make_pipeline(StandardScaler(), PCA(3), LogisticRegression(max_iter=500))
    model.fit(train_x, train_y)
    score = accuracy_score(test_y, model.predict(test_x))
    assert score > 0.9

    folds = cross_val_score(model, features, target, cv=3, n_jobs=1)
    forest = RandomForestClassifier(n_estimators=20, random_state=0, n_jobs=1).fit(train_x, train_y)
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=3, n_jobs=1).fit(features, target)
    clusters = AgglomerativeClustering(n_clusters=3).fit_predict(features)
    words = TfidfVectorizer().fit(["red apple", "green apple"]).get_feature_names_out()

    path = os.path.join(folder, "model.joblib")
    joblib.dump(model, path)
    assert np.array_equal(joblib.load(path).predict(test_x), model.predict(test_x))
    assert np.array_equal(pickle.loads(pickle.dumps(forest)).predict(test_x), forest.predict(test_x))
    return {
        "score": round(float(score), 4),
        "folds": [round(float(v), 4) for v in folds],
        "forest": round(float(forest.score(test_x, test_y)), 4),
        "best": search.best_params_,
        "clusters": sorted(np.bincount(clusters).tolist()),
        "words": words.tolist(),
    }
